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

// This file is the CPU backend.

// cpuBackend runs the host code of a program on the calling goroutine and the worker pool of
// package threads.
type cpuBackend struct{}

func (cpuBackend) Name() string                                            { return "cpu" }
func (cpuBackend) Arch() string                                            { return runtime.GOARCH }
func (cpuBackend) NumSMs() int                                             { return 1 }
func (cpuBackend) Bandwidth() int64                                        { return 0 }
func (cpuBackend) Load(*ops.Problem, ops.Program) ([]launch.Kernel, error) { return nil, nil }

func (cpuBackend) Launch(p *Plan, _, _ uintptr, args []tensor.Tensor, _ *launchCache) error {
	defer threads.EnterDefaultMode().Leave()
	p.program.Host(args)
	runtime.KeepAlive(args)
	return nil
}

// NumThreads is the number of threads that one run on the CPU may use. The first source that is set
// decides: SetNumThreads, STERNWAY_NUM_THREADS, torch.get_num_threads() if torch is loaded,
// OMP_NUM_THREADS, the number of processors available to this process. A run never uses more
// threads than there are processors available.
func NumThreads() int { return threads.Number() }

// SetNumThreads changes NumThreads. Results do not depend on it.
func SetNumThreads(n int) error {
	if n < 1 || n > threads.Max {
		return errs.New(errs.InvalidProblem, "set_num_threads", "n", fmt.Sprint("between 1 and ", threads.Max), fmt.Sprint(n), "")
	}
	threads.Set(n)
	return nil
}
