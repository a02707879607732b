package core

import (
	"fmt"
	"runtime"

	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/sternway/sternway/core/internal/threads"
)

// cpuBackend runs the Go body of a program on the calling thread and a few goroutines.
type cpuBackend struct{}

func (cpuBackend) Name() string                                            { return "cpu" }
func (cpuBackend) Arch() string                                            { return runtime.GOARCH }
func (cpuBackend) Units() int                                              { return 1 }
func (cpuBackend) Bandwidth() int64                                        { return 0 }
func (cpuBackend) Load(*ops.Problem, ops.Program) ([]launch.Kernel, error) { return nil, nil }

func (cpuBackend) Launch(p *Plan, _, _ uintptr, args []tensor.Tensor, _ *recipe) error {
	p.program.Host(args)
	runtime.KeepAlive(args)
	return nil
}

// NumThreads is the number of threads that one run on the CPU may use. The first of these that there is: the number of SetNumThreads,
// STERNWAY_NUM_THREADS, the number of threads of torch in a process that has loaded it, OMP_NUM_THREADS, the number of processors that this
// process may use. Whatever it is, a run uses no more threads than there are processors.
func NumThreads() int { return threads.Number() }

// SetNumThreads changes NumThreads. Results do not depend on it.
func SetNumThreads(n int) error {
	if n < 1 || n > threads.Max {
		return errs.New(errs.InvalidProblem, "set_num_threads", "n", fmt.Sprint("between 1 and ", threads.Max), fmt.Sprint(n), "")
	}
	threads.Set(n)
	return nil
}
