package selective

import (
	"fmt"

	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// program is a problem that was compiled for a device.
type program struct {
	*problem
	isBackward bool
}

// compiler returns the function that compiles the problem for a device.
func (p *problem) compiler(isBackward bool) func(*ops.Problem, int, bool, ops.Preference) (ops.Program, error) {
	return func(_ *ops.Problem, numSMs int, cuda bool, preference ops.Preference) (ops.Program, error) {
		if asked := preference.Kernel; asked != "" && asked != Kernel {
			return nil, errs.New(errs.Unsupported, p.op, "preference.kernel", fmt.Sprintf("%q for this problem", Kernel), fmt.Sprintf("%q", asked), "")
		}
		c := &program{problem: p, isBackward: isBackward}
		if cuda {
			return compileCUDA(c, numSMs)
		}
		return c, nil
	}
}

// Kernel implements ops.Program.
func (c *program) Kernel() string { return Kernel }

// Workspace implements ops.Program.
func (c *program) Workspace() int64 { return 0 }

// InPlace implements ops.Program: no output may be an input.
func (c *program) InPlace([]tensor.Tensor, int) bool { return false }

// Symbols implements ops.Program.
func (c *program) Symbols() []launch.Symbol { return nil }

// Device implements ops.Program: a program for the CPU has no launches.
func (c *program) Device([]tensor.Tensor, uintptr, *launch.Queue) error { return nil }
