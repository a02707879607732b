package core

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every task is done once, by helpers that are awake, asleep, or busy with the run of another thread.
func TestParallelRunsShareTheCrew(t *testing.T) {
	defer func(n int) { assert.NoError(t, SetNumThreads(n)) }(NumThreads())
	assert.NoError(t, SetNumThreads(3))
	run := func() {
		const tasks = 1000
		var done [tasks]atomic.Int32
		parallel(tasks, 1, func() (struct{}, func()) { return struct{}{}, func() {} },
			func(_ struct{}, task int64) { done[task].Add(1) })
		for i := range done {
			assert.EqualValues(t, 1, done[i].Load())
		}
	}
	for range 3 {
		run()
		time.Sleep(2 * patience)
	}
	var threads sync.WaitGroup
	for range 4 {
		threads.Go(func() {
			for range 20 {
				run()
			}
		})
	}
	threads.Wait()
}

// Each goroutine begins with a part of the tasks of its own, so that it comes upon the same memory in every run.
func TestParallelBeginsSideBySide(t *testing.T) {
	defer func(n int) { assert.NoError(t, SetNumThreads(n)) }(NumThreads())
	assert.NoError(t, SetNumThreads(2))
	for _, tasks := range []int64{2, 3, 101} {
		var begun sync.WaitGroup
		begun.Add(2)
		first := make(chan int64, 2)
		parallel(tasks, 1, func() (*bool, func()) { return new(bool), func() {} }, func(some *bool, task int64) {
			if !*some {
				*some = true
				first <- task
				begun.Done()
				begun.Wait() // lest one do all
			}
		})
		assert.ElementsMatch(t, []int64{0, tasks / 2}, []int64{<-first, <-first})
	}
}

// A panic of any goroutine reaches the caller, and the crew works on.
func TestParallelHandsPanicsOn(t *testing.T) {
	fail := func(bad int64) {
		parallel(100, 1, func() (struct{}, func()) { return struct{}{}, func() {} }, func(_ struct{}, task int64) {
			if task == bad {
				panic("a fault")
			}
		})
	}
	for range 50 {
		assert.PanicsWithValue(t, "a fault", func() { fail(37) })
	}
	fail(-1)
}

// Between handing over a job and ringing, a goroutine can be held up for as long as the helper takes to do the job and to fall asleep.
func TestHelperAnswersALateAlarm(t *testing.T) {
	h := &helper{alarm: make(chan struct{}, 1)}
	go h.serve()
	require.Eventually(t, h.asleep.Load, time.Second, time.Millisecond)
	require.True(t, h.asleep.CompareAndSwap(true, false))
	h.alarm <- struct{}{}
	require.Eventually(t, h.asleep.Load, time.Second, time.Millisecond)
	done := make(chan struct{})
	h.give(func() { close(done) })
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		require.Fail(t, "the helper does no more jobs")
	}
}
