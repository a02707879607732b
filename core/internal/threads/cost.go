package threads

import (
	"sync/atomic"
	"unsafe"
)

// workPerWorker is how many nanoseconds of work have to wait for a worker for it to be asked for.
const workPerWorker = 15_000

// costs remembers how many nanoseconds a task takes, for each program and way of cutting its work. Entries replace each other where there
// are more: what an unknown task takes is found out by the run itself.
var costs [1024]struct{ key, nanoseconds atomic.Int64 }

// costOf is the place of what a task takes; 0: not known.
func costOf(program unsafe.Pointer, tasks, grain int64) *atomic.Int64 {
	hash := uint64(uintptr(program)) ^ uint64(tasks)<<32 ^ uint64(grain)<<20
	hash *= 0x9e3779b97f4a7c15 // of Knuth's multiplicative hashing
	key, entry := int64(hash|1), &costs[hash>>54]
	if entry.key.Swap(key) != key {
		entry.nanoseconds.Store(0)
	}
	return &entry.nanoseconds
}

// learn takes a measurement into account: a shorter one at once, as longer ones are often disturbed.
func updateCost(cost *atomic.Int64, measured int64) {
	if known := cost.Load(); known != 0 && measured > known {
		measured = known + (measured-known)/8
	}
	cost.Store(max(measured, 1))
}

// workersFor is how many workers to ask for tasks that take some nanoseconds each.
func workersFor(tasks, grain, each int64) int {
	n := min((tasks+grain-1)/grain, tasks*each/workPerWorker)
	if n <= 1 || !workersAllowed() {
		return 0
	}
	return int(min(n, int64(Number()), int64(processors()))) - 1
}
