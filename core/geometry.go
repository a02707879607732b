package core

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sternway/sternway/core/driver"
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file describes how a run with contiguous operands is divided.

// geometry is one line: the number of tasks of a run on the CPU, or the kernel launches of a run on
// a GPU, in order. The operands are contiguous: as many outputs as go together, with as few inputs
// as they need.
func (p *Plan) geometry() string {
	args := p.contiguousArgs()
	if _, isGPU := p.backend.(cudaBackend); !isGPU {
		return counted(p.program.Tasks(args), "task")
	}
	launches, err := p.launches(args)
	if err != nil { // the operands are checked, so only the size of the grid can be wrong
		return "none: a grid exceeds the limit of CUDA"
	}
	if len(launches) == 0 {
		return "no launches"
	}
	symbols, texts := p.program.Symbols(), make([]string, len(launches))
	for i := range launches {
		l := &launches[i].Launch
		texts[i] = fmt.Sprintf("%s: grid %d, block %d", symbols[launches[i].Kernel].Name, l.Grid, l.Block)
		if l.Cluster > 0 {
			texts[i] += fmt.Sprintf(", cluster %d", l.Cluster)
		}
		if l.Shared > 0 {
			texts[i] += fmt.Sprintf(", shared memory %d bytes", l.Shared)
		}
	}
	return strings.Join(texts, ", then ")
}

// counted is a number of things with their name in the singular or plural.
func counted(n int64, name string) string {
	if n == 1 {
		return "1 " + name
	}
	return fmt.Sprintf("%d %ss", n, name)
}

// recorder is a device that accepts launches and runs none.
type recorder struct{ driver.Device }

// Launch does nothing: the queue records the launch.
func (recorder) Launch(driver.Kernel, *driver.Launch) error { return nil }

// launches are the launches of a run on a recorder.
func (p *Plan) launches(args []tensor.Tensor) (recorded []launch.RecordedLaunch, err error) {
	const workspace = 1 << 48
	q := &launch.Queue{Kernels: p.kernels, Device: recorder{p.backend.(cudaBackend).device}, Recorded: &recorded}
	err = p.program.Device(args, workspace, q)
	return recorded, err
}

// contiguousArgs are contiguous operands at addresses of their own, which are never accessed. An
// operation may take optional operands in certain combinations only. The sets of optional outputs
// are tried from all to none, each with the sets of optional inputs from none to all.
func (p *Plan) contiguousArgs() []tensor.Tensor {
	var inputs, outputs []int // optional ones
	all := make([]tensor.Tensor, len(p.problem.Operands))
	for i, o := range p.problem.Operands {
		all[i] = p.contiguous(i)
		switch {
		case !o.Optional:
		case o.Out:
			outputs = append(outputs, i)
		default:
			inputs = append(inputs, i)
		}
	}
	args := slices.Clone(all)
	give := func(indices []int, set int) { // bit k: operand indices[k] is given
		for k, i := range indices {
			args[i] = tensor.Tensor{}
			if set>>k&1 == 1 {
				args[i] = all[i]
			}
		}
	}
	for outputSet := 1<<len(outputs) - 1; outputSet >= 0; outputSet-- {
		give(outputs, outputSet)
		for inputSet := range 1 << len(inputs) {
			give(inputs, inputSet)
			if p.checkPresence(args) == nil {
				return args
			}
		}
	}
	return args
}

// contiguous is operand i as a contiguous tensor. An extent that the problem leaves open is 1.
func (p *Plan) contiguous(i int) tensor.Tensor {
	o := &p.problem.Operands[i]
	t := tensor.Tensor{Data: uintptr(i+1) << 42, DType: o.DTypes[0], Device: p.device, NDim: int32(len(o.Shapes[0])), Present: 1}
	for d, extent := range o.Shapes[0] {
		if t.Shape[d] = extent; extent == ops.AnyExtent {
			t.Shape[d] = 1
		}
	}
	copy(t.Strides[:], tensor.Compact(t.Extents()))
	return t
}
