package threads

import (
	"sync"
	"sync/atomic"
	"time"
)

// pool is the worker pool of the CPU backend: goroutines that take tasks of a run beside the goroutine that began it.
//
// A worker may start late, or lose its processor to another program for some milliseconds. So a run waits for begun tasks alone, never for
// a worker, and asks for none where workers did not pay lately.
//
// Where an OpenMP runtime keeps its threads spinning after a parallel operation, those of torch for example, the processors look busy to
// workers. Its team does the work then: see openmp.h.
var pool struct {
	sync.Mutex
	idle []*poolWorker
	size int

	pause    atomic.Int64 // nanoseconds for which runs go alone once workers do not pay
	resumes  atomic.Int64 // the time until which they do, as of now()
	saved    atomic.Int64 // nanoseconds that workers saved lately, less what they lost; at most longestCredit
	failures atomic.Int64 // times in a row that they lost more than they had saved
	openMP   atomic.Bool  // the team of OpenMP is to be asked, where there is one
}

// spinTime is how long a worker without work, and a run that waits for its last tasks, look out before they sleep: waking a thread takes as
// long as many a run, and runs that follow each other in a loop come sooner.
const spinTime = 100 * time.Microsecond

// Limits of pool.pause.
const (
	shortestPause = time.Millisecond
	longestPause  = time.Second
	pausePerLoss  = 64 // times what a run lost
)

// longestCredit is how much workers may lose, in one run or in several, after they saved as much: less than a time slice of another
// program, and more than what an interrupt takes.
const longestCredit = time.Millisecond

// trialCredit is what workers may lose after a pause before the next one: the first run then wakes a thread.
const trialCredit = 200 * time.Microsecond

// poolWorker does one job at a time.
type poolWorker struct {
	number int
	job    atomic.Pointer[job]
	asleep atomic.Bool
	wake   chan struct{}
}

var epoch = time.Now()

// now is the time in nanoseconds on a monotonic clock.
func now() int64 { return int64(time.Since(epoch)) }

// submit hands a job to workers without work, at most n of them. There are fewer where other runs have them, or where a processor is
// missing for one.
func submit(j *job, n int) {
	limit := processors() - 1
	pool.Lock()
	for ; len(pool.idle) < n && pool.size < limit; pool.size++ {
		w := &poolWorker{number: pool.size + 1, wake: make(chan struct{}, 1)}
		go w.loop()
		pool.idle = append(pool.idle, w)
	}
	rest := max(0, len(pool.idle)-min(n, limit))
	var buffer [64]*poolWorker
	acquired := append(buffer[:0], pool.idle[rest:]...)
	pool.idle = pool.idle[:rest]
	pool.Unlock()
	for _, w := range acquired {
		w.assign(j)
	}
}

func (w *poolWorker) assign(j *job) {
	w.job.Store(j)
	if w.asleep.CompareAndSwap(true, false) {
		w.wake <- struct{}{}
	}
}

func (w *poolWorker) loop() {
	for {
		if !spinUntil(func() bool { return w.job.Load() != nil }) {
			w.asleep.Store(true)
			if w.job.Load() == nil || !w.asleep.CompareAndSwap(true, false) {
				<-w.wake
			}
		}
		if j := w.job.Swap(nil); j != nil { // nil: the wake-up is for a job that was seen and done before it came
			j.work(w.number)
			pool.Lock()
			pool.idle = append(pool.idle, w)
			pool.Unlock()
		}
	}
}

// spinUntil looks out for something to happen, and reports whether it did within spinTime.
func spinUntil(happened func() bool) bool {
	for start := time.Now(); !happened(); {
		if time.Since(start) > spinTime {
			return false
		}
	}
	return true
}

// judge compares how long a run took with how long it would have taken alone, and keeps the balance of what workers saved. Where they lost
// more than they had saved, the processors are busy with something else: the other sort of workers is tried if there is one, and when that
// did not pay either the next runs go alone, for longer each time that workers disappoint again, and for many times as long as was lost.
func updateBalance(took, alone int64, choice bool) {
	pause := pool.pause.Load()
	balance := min(pool.saved.Load()+alone-took, int64(longestCredit))
	if balance >= 0 {
		pool.saved.Store(balance)
		if took <= alone {
			pool.failures.Store(0)
			if pause > 0 {
				pool.pause.Store(pause / 2)
			}
		}
		return
	}
	pool.saved.Store(int64(trialCredit))
	failures := pool.failures.Add(1)
	if choice {
		pool.openMP.Store(!pool.openMP.Load())
		if failures%2 == 1 {
			return
		}
	}
	pause = min(max(2*pause, pausePerLoss*(took-alone+int64(trialCredit)), int64(shortestPause)), int64(longestPause))
	pool.pause.Store(pause)
	pool.resumes.Store(now() + pause)
}

// workersPay reports whether the time for which runs go alone is over.
func workersAllowed() bool { return pool.pause.Load() == 0 || now() >= pool.resumes.Load() }

// job is a run that workers may join, which is of use until its tasks are all begun.
type job struct {
	work      func(number int) // takes tasks until none is left; 0 is the goroutine that began the run
	tasks     int64
	completed atomic.Int64
	waiting   atomic.Bool
	done      chan struct{}
}

// complete counts tasks that are done.
func (j *job) complete(n int64) {
	if j.completed.Add(n) == j.tasks && j.waiting.Load() {
		j.done <- struct{}{}
	}
}

// wait returns when every task is done.
func (j *job) wait() {
	all := func() bool { return j.completed.Load() == j.tasks }
	if spinUntil(all) {
		return
	}
	if j.waiting.Store(true); !all() {
		<-j.done
	}
}
