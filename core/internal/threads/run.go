package threads

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"unsafe"
)

// This file distributes the tasks of a run among goroutines, with work stealing.

func init() {
	pool.saved.Store(int64(trialCredit))
	pool.openMP.Store(true)
	if runtime.GOMAXPROCS(0) < 2 { // one P would let a long run in C delay every other goroutine
		runtime.GOMAXPROCS(2)
	}
}

// taskRange is the range of tasks that one goroutine of a run owns. Others steal from it when they
// have finished their own.
type taskRange struct {
	next atomic.Int64 // first task that is not taken; failed attempts to steal move it past end
	end  int64
	_    [48]byte // padding to a cache line of 64 bytes
}

// drain takes all remaining tasks and returns their number.
func (r *taskRange) drain() int64 { return max(0, r.end-r.next.Swap(r.end)) }

// Run calls body for every task, on this goroutine and, if the work is large enough, on workers of
// the pool. start allocates the scratch of a goroutine and returns the function that releases it.
// grain is the number of tasks that justify one more goroutine. program is the key under which the
// cost of a task is cached; callers that pass nil share entries.
//
// Each goroutine owns a contiguous range of tasks, the same in every run with as many tasks, so
// that its part of the operands stays in a nearby cache. A goroutine without tasks steals from the
// others. The caller divides the work into tasks independently of the number of threads, so the
// result does not depend on it. A panic of any goroutine reaches the caller. Workers have the
// default floating-point mode, which the caller enters itself.
func Run[W any](program unsafe.Pointer, tasks, grain int64, start func() (W, func()), body func(scratch W, task int64)) {
	if tasks <= 0 {
		return
	}
	scratch, done := start()
	defer done()
	if tasks <= grain {
		for task := range tasks {
			body(scratch, task)
		}
		return
	}
	cost, began, first := costOf(program, tasks, grain), now(), int64(0)
	each := cost.Load()
	if each == 0 { // unknown cost: measure the first task
		body(scratch, 0)
		first, each = 1, max(now()-began, 1)
	}
	n := workersFor(tasks-first, grain, each)
	if raceDetector {
		n = min(int(tasks-first), Number(), processors()) - 1
	}
	if n > 0 {
		if each = runOnAll(n, first, tasks, start, body, scratch); each > 0 {
			updateCost(cost, each)
		}
		return
	}
	for task := first; task < tasks; task++ {
		body(scratch, task)
	}
	updateCost(cost, (now()-began)/tasks)
}

// runOnAll runs the tasks first..tasks-1 on this goroutine and n workers. It returns the
// nanoseconds of CPU time per task that this goroutine measured; 0 if it ran none.
func runOnAll[W any](n int, first, tasks int64, start func() (W, func()), body func(scratch W, task int64), scratch W) (each int64) {
	own := make([]taskRange, n+1)
	for k, count := int64(0), tasks-first; k <= int64(n); k++ {
		own[k].next.Store(first + k*count/int64(n+1))
		own[k].end = first + (k+1)*count/int64(n+1)
	}
	j := &job{tasks: tasks - first, done: make(chan struct{}, 1)}
	var failure atomic.Value
	take := func(scratch W, number int) (taken int64) {
		defer func() {
			if r := recover(); r != nil {
				failure.CompareAndSwap(nil, fmt.Sprint(r))
				left := int64(1) // the task that panicked
				for k := range own {
					left += own[k].drain()
				}
				j.complete(left)
			}
		}()
		for k := range own {
			from := &own[(number+k)%len(own)]
			for task := from.next.Add(1) - 1; task < from.end; task = from.next.Add(1) - 1 {
				body(scratch, task)
				taken++
				j.complete(1)
			}
		}
		return taken
	}
	j.work = func(number int) {
		if j.completed.Load() < j.tasks {
			defer EnterDefaultMode().Leave()
			scratch, done := start()
			defer done()
			take(scratch, number)
		}
	}
	runtime.LockOSThread() // threadTime measures one OS thread
	defer runtime.UnlockOSThread()
	var began, taken int64
	mine := func() {
		used := threadTime()
		if taken = take(scratch, 0); taken > 0 {
			each = max((threadTime()-used)/taken, 1)
		}
	}
	choice := hasOpenMPTeam(n)
	began = now()
	if choice && pool.openMP.Load() {
		runOnOpenMP(n, j.work, mine)
	} else {
		submit(j, n)
		mine()
	}
	j.wait()
	if taken > 0 {
		updateBalance(now()-began, each*j.tasks, choice)
	}
	if r := failure.Load(); r != nil {
		panic(r)
	}
	return each
}
