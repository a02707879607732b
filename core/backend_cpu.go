package core

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
)

// cpuBackend runs the Go body of a program on the calling thread and a few goroutines.
type cpuBackend struct{}

func (cpuBackend) Name() string                             { return "cpu" }
func (cpuBackend) Arch() string                             { return runtime.GOARCH }
func (cpuBackend) Units() int                               { return 1 }
func (cpuBackend) Bandwidth() int64                         { return 0 }
func (cpuBackend) Load(*problem, program) ([]Kernel, error) { return nil, nil }

func (cpuBackend) Launch(p *Plan, _, _ uintptr, args []Tensor, _ *recipe) error {
	p.program.host(args)
	runtime.KeepAlive(args)
	return nil
}

var threads atomic.Int64

func init() {
	n := runtime.NumCPU()
	if wanted, err := strconv.Atoi(os.Getenv("STERNWAY_NUM_THREADS")); err == nil && wanted > 0 {
		n = wanted
	}
	threads.Store(int64(n))
	runtime.GOMAXPROCS(max(n, 2))
}

// NumThreads is the number of goroutines that one run on the CPU may use.
func NumThreads() int { return int(threads.Load()) }

// SetNumThreads changes NumThreads. Results do not depend on it.
func SetNumThreads(n int) error {
	if n < 1 || n > 1<<16 {
		return refuse(InvalidProblem, "set_num_threads", "n", "between 1 and 65536", fmt.Sprint(n), "")
	}
	threads.Store(int64(n))
	runtime.GOMAXPROCS(max(n, 2))
	return nil
}

// turns are the tasks that a goroutine of parallel begins with: next is the first that nobody has taken yet.
type turns struct {
	next atomic.Int64
	end  int64
	_    [48]byte // a line of the cache for each goroutine
}

// parallel calls body for every task, on a few goroutines with a worker each; start lends a worker and says how it is given back.
// A share of tasks is worth another goroutine. Each begins with tasks that are side by side, the same ones in every run of as many, so that
// it finds its part of the operands in a cache near it; one that has done its own helps the others. Tasks are cut by the caller in a way
// that does not depend on the number of threads, so neither does the result. A panic of any goroutine reaches the caller.
func parallel[W any](tasks, share int64, start func() (W, func()), body func(worker W, task int64)) {
	workers := min(int64(NumThreads()), ceil(tasks, share))
	if workers <= 1 {
		if tasks > 0 {
			worker, done := start()
			defer done()
			for task := range tasks {
				body(worker, task)
			}
		}
		return
	}
	own := make([]turns, workers)
	for w := range workers {
		own[w].next.Store(w * tasks / workers)
		own[w].end = (w + 1) * tasks / workers
	}
	var failure atomic.Value
	work := func(member int) {
		defer func() {
			if r := recover(); r != nil {
				failure.CompareAndSwap(nil, fmt.Sprint(r))
			}
		}()
		worker, done := start()
		defer done()
		for k := range own {
			from := &own[(member+k)%len(own)]
			for task := from.next.Add(1) - 1; task < from.end; task = from.next.Add(1) - 1 {
				body(worker, task)
			}
		}
	}
	together(int(workers)-1, work)
	if r := failure.Load(); r != nil {
		panic(r)
	}
}
