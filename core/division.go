package core

import (
	"encoding/json"

	"github.com/sternway/sternway/core/driver"
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file describes how a run with contiguous operands is divided, for the display of plans.

// DivisionJSON describes how a run with contiguous operands divides its work: among tasks on the
// CPU, or in each kernel launch; and the bytes that an ideal run moves.
func (p *Plan) DivisionJSON() string {
	tasks, launches := p.divisions()
	text, _ := json.Marshal(map[string]any{"tasks": tasks, "launches": launches, "bytes": p.problem.Traffic})
	return string(text)
}

// launchRow is one kernel launch of a run.
type launchRow struct {
	Kernel  string `json:"kernel"`
	Grid    uint32 `json:"grid"`    // CTAs
	Threads uint32 `json:"threads"` // of a CTA
	Cluster uint32 `json:"cluster"` // CTAs of a thread-block cluster; 0: no clusters
	Shared  uint32 `json:"shared"`  // bytes of dynamic shared memory of a CTA
	// Divisions are the matrices of the work, each divided among CTAs of its own.
	Divisions []launch.Division `json:"divisions"`
}

// recorder is a device that accepts launches and runs none.
type recorder struct{ driver.Device }

// Launch does nothing: the queue records the launch.
func (recorder) Launch(driver.Kernel, *driver.Launch) error { return nil }

// divisions returns how a run with contiguous operands is divided: among tasks on the CPU, or in
// the kernel launches of a run on a recorder. Both are empty if the operation has nothing to do,
// refuses to launch a problem of this size, or accepts no set of contiguous operands.
func (p *Plan) divisions() (tasks []launch.Division, launches []launchRow) {
	tasks, launches = []launch.Division{}, []launchRow{}
	args, accepted := p.contiguousArgs()
	if !accepted {
		return tasks, launches
	}
	b, isDevice := p.backend.(cudaBackend)
	if !isDevice {
		return append(tasks, p.program.HostDivisions(args)...), launches
	}
	recorded, divisions := []launch.RecordedLaunch{}, [][]launch.Division{}
	q := &launch.Queue{Kernels: p.kernels, Device: recorder{b.device}, Recorded: &recorded, Divisions: &divisions}
	const workspace = 1 << 48
	if p.program.Device(args, workspace, q) != nil {
		return tasks, launches
	}
	symbols := p.program.Symbols()
	for i := range recorded {
		l := &recorded[i].Launch
		row := launchRow{symbols[recorded[i].Kernel].Name, l.Grid, l.Block, l.Cluster, l.Shared, []launch.Division{}}
		row.Divisions = append(row.Divisions, divisions[i]...)
		launches = append(launches, row)
	}
	return tasks, launches
}

// contiguousArgs are contiguous operands at addresses of their own, which are never accessed: as
// many outputs as are accepted together, with as few inputs as these need. It tries every set of
// operands, as an operation may accept optional operands in certain combinations only. Of equally
// good sets it returns the first in the order of their bit masks.
func (p *Plan) contiguousArgs() (args []tensor.Tensor, accepted bool) {
	operands, best := p.problem.Operands, 0
	for given := range 1 << len(operands) { // bit i: operand i is given
		candidate, score := make([]tensor.Tensor, len(operands)), 0
		for i := range operands {
			switch {
			case given>>i&1 == 0:
				continue
			case operands[i].Out:
				score += len(operands) // more than all inputs can take away
			default:
				score--
			}
			candidate[i] = p.contiguous(i)
		}
		if (!accepted || score > best) && p.checkPresence(candidate) == nil {
			args, best, accepted = candidate, score, true
		}
	}
	return args, accepted
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
