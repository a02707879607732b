package core

import (
	"math"

	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/tensor"
)

// recipe is what one run on a GPU came to. A plan is mostly run again on operands that differ in nothing but their addresses; then
// the launches differ in nothing else either, and all that is left to check is that no operand overlaps an output.
type recipe struct {
	args     []tensor.Tensor // as checked, each address cut down to what alignment depends on
	spans    [][2]int64
	outputs  []int
	launches []launch.RecordedLaunch
}

const (
	alignmentBits = launch.WorkspaceAlignment - 1
)

// key is a tensor without the part of its address that no launch depends on.
func key(t tensor.Tensor) tensor.Tensor {
	t.Data &= alignmentBits
	t.Pin = nil
	return t
}

// newRecipe begins the recipe of a run whose operands were checked; nil where an operand is exactly an output.
func newRecipe(p *Plan, args []tensor.Tensor) *recipe {
	r := &recipe{}
	for i := range args {
		low, high, _ := args[i].Span()
		if !args[i].Given() {
			low, high = 0, 0
		}
		r.args = append(r.args, key(args[i]))
		r.spans = append(r.spans, [2]int64{low, high})
		if p.problem.Operands[i].Out && args[i].Given() {
			r.outputs = append(r.outputs, i)
		}
	}
	if !r.apart(args) {
		return nil
	}
	return r
}

// fits reports that the recipe is that of these operands, too.
func (r *recipe) fits(args []tensor.Tensor) bool {
	if len(args) != len(r.args) {
		return false
	}
	for i := range args {
		if args[i].Present|r.args[i].Present == 0 {
			continue
		}
		low, high, address := r.spans[i][0], r.spans[i][1], int64(args[i].Data)
		if key(args[i]) != r.args[i] || address == 0 && high > 0 || address < -low || address > math.MaxInt64-high {
			return false
		}
	}
	return r.apart(args)
}

// apart reports that the spans of the outputs meet no other span. Views that interleave are left to the full check.
func (r *recipe) apart(args []tensor.Tensor) bool {
	for _, o := range r.outputs {
		low, high := int64(args[o].Data)+r.spans[o][0], int64(args[o].Data)+r.spans[o][1]
		for i := range args {
			if i != o && int64(args[i].Data)+r.spans[i][0] < high && low < int64(args[i].Data)+r.spans[i][1] {
				return false
			}
		}
	}
	return true
}

// replay launches the recipe on other addresses.
func (r *recipe) replay(q *launch.Queue, args []tensor.Tensor, workspace uintptr) error {
	for i := range r.launches {
		recorded := &r.launches[i]
		q.Launch.CopyFrom(&recorded.Launch)
		for _, p := range recorded.Patches {
			address := workspace
			if p.Operand != launch.WorkspaceOperand {
				address = args[p.Operand].Data
			}
			q.Launch.Words()[p.Word] = uint64(address)
		}
		if err := q.Device.Launch(q.Kernels[recorded.Kernel], &q.Launch); err != nil {
			return err
		}
	}
	return nil
}
