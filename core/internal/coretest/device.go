package coretest

import (
	"slices"
	"testing"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/stretchr/testify/require"
)

// DeviceTensor is a row-major tensor at an address of a device that is not there.
func DeviceTensor(d tensor.DType, address uintptr, shape ...int64) tensor.Tensor {
	t := tensor.Tensor{Data: address, DType: d, Device: tensor.CUDA(0), NDim: int32(len(shape)), Present: 1}
	copy(t.Shape[:], shape)
	copy(t.Strides[:], tensor.Compact(shape))
	return t
}

// DeviceArgs gives every operand of a plan memory of its own, 1 TiB apart.
func DeviceArgs(plan *core.Plan, names ...string) (args []tensor.Tensor, workspace tensor.Tensor) {
	for i, o := range ProblemOf(plan).Operands {
		t := tensor.Tensor{}
		if slices.Contains(names, o.Name) {
			t = DeviceTensor(o.DTypes[0], uintptr(i+1)<<40, Concrete(o.Shapes[0])...)
		}
		args = append(args, t)
	}
	if size := plan.WorkspaceSize(); size > 0 {
		workspace = DeviceTensor(tensor.Uint8, 100<<40, size)
	}
	return args, workspace
}

// ProblemOf is the problem that a plan was selected for.
func ProblemOf(plan *core.Plan) *ops.Problem {
	p, err := plan.Descriptor().Problem()
	if err != nil {
		panic(err)
	}
	return p
}

// ProgramOf is the program that a plan runs, compiled once more.
func ProgramOf(t testing.TB, plan *core.Plan, numSMs int, preference ops.Preference) ops.Program {
	p := ProblemOf(plan)
	program, err := p.Compile(p, numSMs, plan.SKU().Backend == "cuda", preference)
	require.NoError(t, err)
	return program
}
