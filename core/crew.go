package core

import (
	"sync"
	"sync/atomic"
	"time"
)

// crew are the goroutines that help with runs on the CPU. Waking a thread takes as long as many a run; so a helper without work looks
// out for some before it sleeps, and a run looks out for the end of its helpers. Where others look out likewise, the threads of openmp.h
// do the work.
var crew struct {
	sync.Mutex
	idle []*helper
	size int
}

// patience is how long to look out. Runs that follow each other in a loop come sooner.
const patience = 200 * time.Microsecond

// helper does one job at a time.
type helper struct {
	job    atomic.Pointer[func()]
	asleep atomic.Bool
	alarm  chan struct{}
}

// hire returns helpers without work, at most n of them; there are fewer where other runs have them.
func hire(n int) []*helper {
	crew.Lock()
	defer crew.Unlock()
	for ; len(crew.idle) < n && crew.size < NumThreads()-1; crew.size++ {
		h := &helper{alarm: make(chan struct{}, 1)}
		go h.serve()
		crew.idle = append(crew.idle, h)
	}
	rest := max(0, len(crew.idle)-n)
	hired := append([]*helper(nil), crew.idle[rest:]...)
	crew.idle = crew.idle[:rest]
	return hired
}

// dismiss takes helpers back whose work is done.
func dismiss(hired []*helper) {
	crew.Lock()
	defer crew.Unlock()
	crew.idle = append(crew.idle, hired...)
}

// give hands a job to a helper without work.
func (h *helper) give(job func()) {
	h.job.Store(&job)
	if h.asleep.CompareAndSwap(true, false) {
		h.alarm <- struct{}{}
	}
}

func (h *helper) serve() {
	for {
		if !soon(func() bool { return h.job.Load() != nil }) {
			h.asleep.Store(true)
			if h.job.Load() == nil || !h.asleep.CompareAndSwap(true, false) {
				<-h.alarm
			}
		}
		if job := h.job.Swap(nil); job != nil { // nil: the alarm is for a job that was seen and done before it rang
			(*job)()
		}
	}
}

// soon looks out for something to happen, and reports whether it did.
func soon(happened func() bool) bool {
	for start := time.Now(); !happened(); {
		if time.Since(start) > patience {
			return false
		}
	}
	return true
}

// together calls work on this thread, which is member 0, and on n more, or on fewer where they are busy, and returns when all of them have
// returned.
func together(n int, work func(member int)) {
	if inTeam(n, work) {
		return
	}
	hired := hire(n)
	ended := make(chan struct{}, len(hired))
	for k, h := range hired {
		h.give(func() {
			work(k + 1)
			ended <- struct{}{}
		})
	}
	work(0)
	soon(func() bool { return len(ended) == len(hired) })
	for range hired {
		<-ended
	}
	dismiss(hired)
}
