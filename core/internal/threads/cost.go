package threads

import (
	"sync/atomic"
	"unsafe"
)

// This file estimates the time of a task, which decides the number of workers of a run.

// workPerWorker is the least work per worker, in nanoseconds, that is worth waking it.
const workPerWorker = 15_000

// costs is a direct-mapped cache of the nanoseconds that one task takes, keyed by program, number
// of tasks and grain size. A new key evicts the entry in its slot; a run measures a task whose cost
// is unknown. Key and value are two atomics: a race between them costs accuracy only.
var costs [1024]struct{ key, nanoseconds atomic.Int64 }

// costOf is the entry with the cost of one task in nanoseconds; 0: unknown.
func costOf(program unsafe.Pointer, tasks, grain int64) *atomic.Int64 {
	hash := uint64(uintptr(program)) ^ uint64(tasks)<<32 ^ uint64(grain)<<20
	hash *= 0x9e3779b97f4a7c15                    // Knuth's multiplicative hashing
	key, entry := int64(hash|1), &costs[hash>>54] // a key is never 0; the top 10 bits are the slot
	if entry.key.Swap(key) != key {
		entry.nanoseconds.Store(0)
	}
	return &entry.nanoseconds
}

// updateCost merges a measurement into an entry. A shorter time replaces the entry; a longer one
// moves it by an eighth of the difference, because interrupts and other programs lengthen
// measurements.
func updateCost(cost *atomic.Int64, measured int64) {
	if known := cost.Load(); known != 0 && measured > known {
		measured = known + (measured-known)/8
	}
	cost.Store(max(measured, 1))
}

// workersFor is the number of workers to use for tasks of `each` nanoseconds, beside the calling
// goroutine.
func workersFor(tasks, grain, each int64) int {
	n := min((tasks+grain-1)/grain, tasks*each/workPerWorker)
	if n <= 1 || !workersAllowed() {
		return 0
	}
	return int(min(n, int64(Number()), int64(processors()))) - 1
}
