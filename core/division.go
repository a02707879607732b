package core

import (
	"encoding/json"
	"math/bits"

	"github.com/sternway/sternway/core/driver"
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file describes how a run with contiguous operands is divided, for the display of plans.

// DivisionJSON describes how a run with contiguous operands divides its work: the matrix of the
// work and the part of one block, the kernel launches, and the bytes that an ideal run moves.
func (p *Plan) DivisionJSON() string {
	division, launches := p.division()
	text, _ := json.Marshal(map[string]any{"division": division, "launches": launches, "bytes": p.problem.Traffic})
	return string(text)
}

// launchRow is one kernel launch of a run.
type launchRow struct {
	Kernel  string `json:"kernel"`
	Grid    uint32 `json:"grid"`    // CTAs
	Threads uint32 `json:"threads"` // of a CTA
	Cluster uint32 `json:"cluster"` // CTAs of a thread-block cluster; 0: no clusters
	Shared  uint32 `json:"shared"`  // bytes of dynamic shared memory of a CTA
}

// recorder is a device that accepts launches and runs none.
type recorder struct{ driver.Device }

// Launch does nothing: the queue records the launch.
func (recorder) Launch(driver.Kernel, *driver.Launch) error { return nil }

// division is how a run with contiguous operands is divided, and its kernel launches, which are
// those of a run on a recorder. Both are empty if the operation has nothing to do, or refuses to
// launch a problem of this size.
func (p *Plan) division() (d ops.Division, launches []launchRow) {
	launches = []launchRow{}
	args, accepted := p.contiguousArgs()
	if !accepted {
		return d, launches
	}
	b, isDevice := p.backend.(cudaBackend)
	if !isDevice {
		return p.program.Division(args, nil), launches
	}
	recorded := []launch.RecordedLaunch{}
	q := &launch.Queue{Kernels: p.kernels, Device: recorder{b.device}, Recorded: &recorded}
	const workspace = 1 << 48
	if p.program.Device(args, workspace, q) != nil || len(recorded) == 0 {
		return d, launches
	}
	symbols := p.program.Symbols()
	for i := range recorded {
		l := &recorded[i].Launch
		launches = append(launches, launchRow{symbols[recorded[i].Kernel].Name, l.Grid, l.Block, l.Cluster, l.Shared})
	}
	return p.program.Division(args, q), launches
}

// contiguousArgs are contiguous operands at addresses of their own, which are never accessed: all
// operands, without as few optional ones as it takes to be accepted.
func (p *Plan) contiguousArgs() (args []tensor.Tensor, accepted bool) {
	var optional []int
	for i := range p.problem.Operands {
		if p.problem.Operands[i].Optional {
			optional = append(optional, i)
		}
	}
	for left := range len(optional) + 1 {
		for dropped := range 1 << len(optional) {
			if bits.OnesCount(uint(dropped)) != left {
				continue
			}
			args = args[:0]
			for i := range p.problem.Operands {
				args = append(args, p.contiguous(i))
			}
			for k, i := range optional {
				if dropped>>(len(optional)-1-k)&1 != 0 { // the last ones first
					args[i] = tensor.Tensor{}
				}
			}
			if p.checkPresence(args) == nil {
				return args, true
			}
		}
	}
	return nil, false
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
