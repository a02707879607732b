package core

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
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
