package threads

import (
	"sync"
	"sync/atomic"
	"time"
)

// pool is the worker pool of the CPU backend. Its goroutines take tasks of a run together with the
// goroutine that started the run.
//
// Waking a parked thread costs as much as a small run. An idle worker therefore spins for spinTime
// before it parks, and the caller spins for completion.
//
// A worker may start late, or lose its processor to another program for milliseconds. A run
// therefore waits for started tasks only, never for a worker, and uses no workers while they
// recently cost more time than they saved (updateBalance).
//
// An OpenMP runtime, such as the one of torch, keeps its threads spinning after a parallel region,
// and they compete with the workers for processors. If there is such a runtime, its team runs the
// tasks (openmp.h), and the workers are tried where the team loses time.
var pool struct {
	sync.Mutex
	idle []*poolWorker
	size int

	pause    atomic.Int64 // nanoseconds that runs stay serial after workers lost time
	resumes  atomic.Int64 // end of the current pause, on the clock of now()
	saved    atomic.Int64 // recent balance of nanoseconds saved less nanoseconds lost; at most longestCredit
	failures atomic.Int64 // consecutive times that the balance fell below zero
	openMP   atomic.Bool  // prefer the OpenMP team, if there is one
}

// spinTime is how long an idle worker, and a caller that waits for its last tasks, spin before they
// park. Runs that follow each other in a loop come sooner.
const spinTime = 100 * time.Microsecond

// Limits of pool.pause.
const (
	shortestPause = time.Millisecond
	longestPause  = time.Second
	pausePerLoss  = 64 // pause as a multiple of the time lost
)

// longestCredit is the largest balance of saved time. Workers may lose this much before a pause. It
// is shorter than a scheduler time slice and longer than an interrupt.
const longestCredit = time.Millisecond

// trialCredit is the balance at the start and after a pause. It covers waking a thread in the first
// run that uses workers again.
const trialCredit = 200 * time.Microsecond

// poolWorker is one goroutine of the pool. It works on one job at a time.
type poolWorker struct {
	number int
	job    atomic.Pointer[job]
	asleep atomic.Bool
	wake   chan struct{}
}

var epoch = time.Now()

// now is the time in nanoseconds on a monotonic clock.
func now() int64 { return int64(time.Since(epoch)) }

// submit assigns a job to n idle workers. It assigns fewer if other runs hold them or if the pool
// has reached the number of processors less one.
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
	acquired := append(buffer[:0], pool.idle[rest:]...) // a copy, because others append to pool.idle after Unlock
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
		if j := w.job.Swap(nil); j != nil { // nil: the job of this wake-up was already taken while spinning
			j.work(w.number)
			pool.Lock()
			pool.idle = append(pool.idle, w)
			pool.Unlock()
		}
	}
}

// spinUntil polls a condition for spinTime and reports whether it became true.
func spinUntil(happened func() bool) bool {
	for start := time.Now(); !happened(); {
		if time.Since(start) > spinTime {
			return false
		}
	}
	return true
}

// updateBalance compares the time of a parallel run with its estimated serial time, both in
// nanoseconds, and adds the difference to the balance of saved time. A balance below zero means
// that the processors are busy with other work. The pool then switches between workers and the
// OpenMP team if it has the choice. If both lost time, the next runs are serial for a pause that
// doubles with each further loss (exponential backoff).
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

// workersAllowed reports whether no pause is in effect.
func workersAllowed() bool { return pool.pause.Load() == 0 || now() >= pool.resumes.Load() }

// job is a run that workers may join as long as some of its tasks are not started.
type job struct {
	work      func(number int) // takes tasks until none is left; number 0 is the goroutine that started the run
	tasks     int64
	completed atomic.Int64
	waiting   atomic.Bool
	done      chan struct{}
}

// complete counts n finished tasks and wakes the caller after the last one.
func (j *job) complete(n int64) {
	if j.completed.Add(n) == j.tasks && j.waiting.Load() {
		j.done <- struct{}{}
	}
}

// wait returns when every task is finished.
func (j *job) wait() {
	all := func() bool { return j.completed.Load() == j.tasks }
	if spinUntil(all) {
		return
	}
	if j.waiting.Store(true); !all() {
		<-j.done
	}
}
