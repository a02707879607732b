package threads

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func nothing() (struct{}, func()) { return struct{}{}, func() {} }

// onTwo does tasks with one worker, whatever the tasks take.
func onTwo(tasks int64, body func(task int64)) int64 {
	return runOnAll(1, 0, tasks, nothing, func(_ struct{}, task int64) { body(task) }, struct{}{})
}

// needTwo skips a test of workers where there is one processor.
func needTwo(t *testing.T) {
	if processors() < 2 {
		t.Skip("one processor: there are no workers")
	}
}

// restore puts back what a test changes.
func restore(t *testing.T) {
	before := setByUser.Load()
	t.Cleanup(func() {
		setByUser.Store(before)
		pool.pause.Store(0)
		pool.resumes.Store(0)
		pool.failures.Store(0)
		pool.saved.Store(int64(trialCredit))
		pool.openMP.Store(true)
	})
}

// disappoint is a run that lost more on workers than they can have saved, and please one that they
// paid for.
func disappoint(choice bool) { updateBalance(3*int64(longestCredit), int64(longestCredit), choice) }
func please(choice bool)     { updateBalance(600, 1000, choice) }

// awaitIdleWorkers returns when every worker is idle. A worker is so a little after its last run
// has ended, and a run does without a worker that is not.
func awaitIdleWorkers(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		pool.Lock()
		defer pool.Unlock()
		return len(pool.idle) == pool.size
	}, 10*time.Second, 100*time.Microsecond)
}

// Every task is done once, by workers that are awake, asleep, or busy with the run of another
// thread.
func TestEveryTaskIsDoneOnce(t *testing.T) {
	restore(t)
	Set(3)
	run := func(workers int) {
		const tasks = 1000
		var done [tasks]atomic.Int32
		count := func(task int64) {
			done[task].Add(1)
			for start := time.Now(); time.Since(start) < time.Microsecond; {
			}
		}
		if workers > 0 {
			runOnAll(workers, 0, tasks, nothing, func(_ struct{}, task int64) { count(task) }, struct{}{})
		} else {
			Run(unsafe.Pointer(t), tasks, 1, nothing, func(_ struct{}, task int64) { count(task) })
		}
		for i := range done {
			require.EqualValues(t, 1, done[i].Load())
		}
	}
	for range 3 {
		run(0)
		run(1)
		run(2)
		time.Sleep(2 * spinTime)
	}
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 20 {
				run(1)
			}
		})
	}
	group.Wait()
}

// Each goroutine begins with tasks of its own, so that it comes upon the same memory in every run.
func TestGoroutinesBeginWithAdjacentTasks(t *testing.T) {
	needTwo(t)
	for _, tasks := range []int64{2, 3, 101} {
		var begun sync.WaitGroup
		begun.Add(2)
		first := make(chan int64, 2)
		awaitIdleWorkers(t)
		runOnAll(1, 0, tasks, func() (*bool, func()) { return new(bool), func() {} }, func(some *bool, task int64) {
			if !*some {
				*some = true
				first <- task
				begun.Done()
				begun.Wait() // so that neither does all tasks
			}
		}, new(bool))
		assert.ElementsMatch(t, []int64{0, tasks / 2}, []int64{<-first, <-first})
	}
}

// A run waits for no worker that took no task: here the worker has lost its processor for good.
func TestARunDoesNotWaitForAWorker(t *testing.T) {
	needTwo(t)
	late := &poolWorker{wake: make(chan struct{}, 1)}
	pool.Lock()
	pool.idle = append(pool.idle, late) // the one that is taken first
	pool.Unlock()
	var done atomic.Int64
	onTwo(50, func(int64) { done.Add(1) })
	require.EqualValues(t, 50, done.Load())
	j := late.job.Load()
	require.NotNil(t, j, "the worker was asked")
	j.work(1) // it gets its processor back: nothing is left for it
	require.EqualValues(t, 50, done.Load())
}

// It waits for a task that a worker has begun.
func TestARunWaitsForBegunTasks(t *testing.T) {
	needTwo(t)
	var ended, all atomic.Bool
	var begun sync.WaitGroup
	begun.Add(2)
	mine := func() bool { begun.Done(); begun.Wait(); return all.CompareAndSwap(false, true) }
	onTwo(2, func(int64) {
		if !mine() {
			time.Sleep(20 * spinTime)
			ended.Store(true)
		}
	})
	require.True(t, ended.Load())
}

// A panic of any goroutine reaches the caller, when no task is being done any more, and the pool
// works on.
func TestPanicsReachTheCaller(t *testing.T) {
	for range 50 {
		for _, bad := range []int64{0, 37, 99} {
			var doing atomic.Int64
			assert.PanicsWithValue(t, "a fault", func() {
				onTwo(100, func(task int64) {
					doing.Add(1)
					defer doing.Add(-1)
					if task == bad {
						panic("a fault")
					}
				})
			})
			require.Zero(t, doing.Load())
		}
	}
	onTwo(100, func(int64) {})
}

// Between handing over a job and waking, a goroutine can be held up for as long as the worker takes
// to do the job and to fall asleep.
func TestWorkerToleratesALateWakeUp(t *testing.T) {
	w := &poolWorker{number: 1, wake: make(chan struct{}, 1)}
	go w.loop()
	require.Eventually(t, w.asleep.Load, time.Second, time.Millisecond)
	require.True(t, w.asleep.CompareAndSwap(true, false))
	w.wake <- struct{}{}
	require.Eventually(t, w.asleep.Load, time.Second, time.Millisecond)
	done := make(chan struct{})
	w.assign(&job{work: func(int) { close(done) }})
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		require.Fail(t, "the worker does no more jobs")
	}
}

// However many threads are set, there are fewer workers than processors.
func TestWorkersAreFewerThanProcessors(t *testing.T) {
	restore(t)
	Set(Max)
	for range 5 {
		runOnAll(1000, 0, 5000, nothing, func(struct{}, int64) {}, struct{}{})
	}
	pool.Lock()
	defer pool.Unlock()
	require.Less(t, pool.size, processors())
	require.LessOrEqual(t, workersFor(1<<20, 1, 1e6), processors()-1)
}

// Workers are asked for where enough work waits for each of them.
func TestWorkersForWork(t *testing.T) {
	restore(t)
	needTwo(t)
	Set(2)
	for _, c := range []struct {
		tasks, grain, each int64
		workers            int
	}{
		{2, 1, workPerWorker, 1},
		{2, 1, workPerWorker / 2, 0},
		{1, 1, 1e9, 0},
		{8, 8, 1e9, 0},
		{9, 8, 1e9, 1},
		{1000, 1, workPerWorker / 500, 1},
		{1000, 1, workPerWorker / 501, 0},
	} {
		require.Equal(t, c.workers, workersFor(c.tasks, c.grain, c.each), c)
	}
	Set(1)
	require.Zero(t, workersFor(1000, 1, 1e9))
}

// Runs go alone for a while after workers did not pay, longer each time, and not longer than
// longestPause.
func TestWorkersThatDoNotPay(t *testing.T) {
	restore(t)
	require.True(t, workersAllowed())
	last := int64(0)
	for range 20 {
		disappoint(false)
		require.False(t, workersAllowed())
		pause := pool.pause.Load()
		require.True(t, pause > last || pause == int64(longestPause))
		last = pause
	}
	pool.resumes.Store(now())
	require.True(t, workersAllowed())
	for range 40 {
		please(false)
		require.True(t, workersAllowed())
	}
	require.Zero(t, pool.pause.Load())
	require.True(t, pool.openMP.Load())
}

// Where there is an OpenMP team as well, the workers are tried next, and runs go alone when both
// did not pay.
func TestTheWorkersAreTriedNext(t *testing.T) {
	restore(t)
	for _, pays := range []bool{true, false} {
		disappoint(true)
		require.True(t, workersAllowed())
		require.False(t, pool.openMP.Load())
		please(true)
		require.False(t, pool.openMP.Load(), "it pays")
		if !pays {
			break
		}
		disappoint(true)
		require.True(t, workersAllowed())
		require.True(t, pool.openMP.Load())
		disappoint(true)
		require.False(t, workersAllowed(), "neither pays")
		pool.resumes.Store(now())
		pool.openMP.Store(true)
	}
}

// Workers may lose what they saved before, and no more.
func TestWorkersMayLoseWhatTheySaved(t *testing.T) {
	restore(t)
	pool.saved.Store(0)
	updateBalance(1000, 2500, false)
	updateBalance(2000, 1000, false)
	require.True(t, workersAllowed())
	updateBalance(1500, 1000, false)
	require.True(t, workersAllowed())
	updateBalance(1001, 1000, false)
	require.False(t, workersAllowed())
	for range 10 {
		updateBalance(1000, int64(longestCredit), false)
	}
	require.EqualValues(t, longestCredit, pool.saved.Load())
}

var programs [2]int // whose addresses do not change, as those on a stack do

// What a task takes is remembered for each program and way of cutting its work; a measurement that
// was disturbed counts little.
func TestCosts(t *testing.T) {
	a, b := unsafe.Pointer(&programs[0]), unsafe.Pointer(&programs[1])
	costOf(a, 10, 1).Store(0)
	updateCost(costOf(a, 10, 1), 800)
	require.EqualValues(t, 800, costOf(a, 10, 1).Load())
	updateCost(costOf(a, 10, 1), 1600)
	require.EqualValues(t, 900, costOf(a, 10, 1).Load())
	updateCost(costOf(a, 10, 1), 700)
	require.EqualValues(t, 700, costOf(a, 10, 1).Load())
	require.Zero(t, costOf(b, 10, 1).Load())
	require.Zero(t, costOf(b, 11, 1).Load())
	require.Zero(t, costOf(b, 11, 2).Load())
}
