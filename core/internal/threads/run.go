package threads

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"unsafe"
)

func init() {
	pool.saved.Store(int64(trialCredit))
	if runtime.GOMAXPROCS(0) < 2 { // lest a run keep others from beginning, where this process had one processor when it started
		runtime.GOMAXPROCS(2)
	}
}

// taskRange is the part of the tasks that one goroutine of a run begins with.
type taskRange struct {
	next atomic.Int64 // the first that nobody has taken yet
	end  int64
	_    [48]byte // a cache line each
}

// drain takes all tasks that are left, and returns their number.
func (r *taskRange) drain() int64 { return max(0, r.end-r.next.Swap(r.end)) }

// Run calls body for every task, on this goroutine and on workers of the pool where that pays. start lends each goroutine its scratch
// and says how it is given back. As many tasks as grain are worth another goroutine; program tells runs apart of which the cost is
// remembered.
//
// Each goroutine begins with adjacent tasks, the same ones in every run of as many, so that it finds its part of the operands in a cache near
// it; one that has done its own takes those of others. Tasks are cut by the caller in a way that does not depend on the number of threads, so
// neither does the result. A panic of any goroutine reaches the caller.
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
	if each == 0 { // not known: the first task tells
		body(scratch, 0)
		first, each = 1, max(now()-began, 1)
	}
	if n := workersFor(tasks-first, grain, each); n > 0 {
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

// runOn does the tasks first..tasks-1 with n workers, and returns the nanoseconds that one took this goroutine; 0 where it had none.
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
				left := int64(1)
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
			scratch, done := start()
			defer done()
			take(scratch, number)
		}
	}
	runtime.LockOSThread() // whose processor time is measured
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
