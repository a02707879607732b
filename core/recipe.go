package core

import (
	"math"

	"github.com/sternway/sternway/core/driver"
)

// recipe is what one run on a GPU came to. A plan is mostly run again on operands that differ in nothing but their addresses; then
// the launches differ in nothing else either, and all that is left to check is that no operand overlaps an output.
type recipe struct {
	args     []Tensor // as checked, each address cut down to what alignment depends on
	spans    [][2]int64
	outputs  []int
	launches []recordedLaunch
}

type recordedLaunch struct {
	kernel  int
	launch  driver.Launch
	patches []patch
}

// patch is a word that holds the address of an operand, or of the workspace.
type patch struct{ word, operand int }

const (
	workspaceOperand = -1
	alignmentBits    = workspaceAlignment - 1
)

// key is a tensor without the part of its address that no launch depends on.
func key(t Tensor) Tensor {
	t.Data &= alignmentBits
	t.pin = nil
	return t
}

// newRecipe begins the recipe of a run whose operands were checked; nil where an operand is exactly an output.
func newRecipe(p *Plan, args []Tensor) *recipe {
	r := &recipe{}
	for i := range args {
		low, high, _ := args[i].span()
		if !args[i].present() {
			low, high = 0, 0
		}
		r.args = append(r.args, key(args[i]))
		r.spans = append(r.spans, [2]int64{low, high})
		if p.problem.operands[i].out && args[i].present() {
			r.outputs = append(r.outputs, i)
		}
	}
	if !r.apart(args) {
		return nil
	}
	return r
}

// fits reports that the recipe is that of these operands, too.
func (r *recipe) fits(args []Tensor) bool {
	if len(args) != len(r.args) {
		return false
	}
	for i := range args {
		low, high, address := r.spans[i][0], r.spans[i][1], int64(args[i].Data)
		if key(args[i]) != r.args[i] || address == 0 && high > 0 || address < -low || address > math.MaxInt64-high {
			return false
		}
	}
	return r.apart(args)
}

// apart reports that the spans of the outputs meet no other span. Views that interleave are left to the full check.
func (r *recipe) apart(args []Tensor) bool {
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
func (r *recipe) replay(q *queue, args []Tensor, workspace uintptr) error {
	for i := range r.launches {
		recorded := &r.launches[i]
		q.launch.CopyFrom(&recorded.launch)
		for _, p := range recorded.patches {
			address := workspace
			if p.operand != workspaceOperand {
				address = args[p.operand].Data
			}
			q.launch.Words()[p.word] = uint64(address)
		}
		if err := q.device.Launch(q.kernels[recorded.kernel], &q.launch); err != nil {
			return err
		}
	}
	return nil
}
