package coretest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/scan"
	"github.com/sternway/sternway/core/internal/ops/selective"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/stretchr/testify/require"
)

// arrangement is the operands of one plan in memory.
type arrangement struct {
	name      string
	plan      *core.Plan
	shape     []int64
	Operands  []*Memory // nil: left out
	Outputs   []int     // operands that are outputs
	Workspace *Memory
	want      [3][]sumOf // what the definition says of each output
}

// Arrange allocates the operands of a trial in the layouts of a scheme.
func (c *Trial) Arrange(t testing.TB, plan *core.Plan, s *Scheme) *arrangement {
	shape := ShapeOf(plan)
	r := &arrangement{
		name: fmt.Sprintf("%s on %s", s.Name, plan.Device()), plan: plan, shape: shape, Workspace: newWorkspace(plan),
		Operands: make([]*Memory, len(ProblemOf(plan).Operands)),
	}
	random := rand.New(rand.NewPCG(7, uint64(len(shape))))
	ins := 0
	for i, o := range ProblemOf(plan).Operands {
		carries, sequences := takes(plan.Descriptor())
		if slices.Contains(c.Without, o.Name) || strings.Contains(o.Name, "carry_") && !carries || o.Name == "cu_seqlens" && !sequences {
			continue
		}
		dtype, given := c.DTypes[o.Name]
		if !given {
			dtype = o.DTypes[0]
		}
		place := Concrete(o.Shapes[len(o.Shapes)-1])
		if c.Flat {
			place = Concrete(o.Shapes[0])
		}
		if o.Out {
			r.Operands[i] = NewMemory(dtype, plan.Device(), place, s.Outs[len(r.Outputs)%len(s.Outs)]).Poison()
			r.Outputs = append(r.Outputs, i)
			continue
		}
		value := c.Values[o.Name]
		if value == nil {
			value = usualValue(ProblemOf(plan).Family, o.Name, dtype)
		}
		r.Operands[i] = NewMemory(dtype, plan.Device(), place, s.Ins[ins%len(s.Ins)])
		r.Operands[i].Fill(func(int64) float64 { return value(random) })
		ins++
	}
	require.NotEmpty(t, r.Outputs)
	return r
}

// takes reports whether runs of a descriptor take carries and the bounds of sequences.
func takes(d ops.Descriptor) (carries, sequences bool) {
	switch d := d.(type) {
	case scan.Scan:
		return d.Carries, d.NumSequences != nil
	case scan.ScanBackward:
		return d.Carries, d.NumSequences != nil
	case scan.LinearRecurrence:
		return false, d.NumSequences != nil
	case scan.LinearRecurrenceBackward:
		return false, d.NumSequences != nil
	case selective.SelectiveScan:
		return false, d.NumSequences != nil
	case selective.SelectiveScanBackward:
		return false, d.NumSequences != nil
	}
	return false, false
}

// usualValue draws numbers that every dtype holds: whole ones for integers.
func usualValue(f *ops.Family, operand string, d tensor.DType) draw {
	switch {
	case d == tensor.Int8:
		return func(r *rand.Rand) float64 { return float64(r.IntN(256) - 128) }
	case d == tensor.Uint8:
		return func(r *rand.Rand) float64 { return float64(r.IntN(256)) }
	case !d.Floating():
		return func(r *rand.Rand) float64 { return float64(r.IntN(2000) - 1000) }
	}
	if o := operations[f.Name]; o != nil && o.values[operand] != nil {
		return o.values[operand]
	}
	if operand == "scale" {
		return func(r *rand.Rand) float64 { return 0.01 + r.Float64() }
	}
	return (*rand.Rand).NormFloat64
}

// newWorkspace is aligned as the plan asks, and no larger than it must be.
func newWorkspace(plan *core.Plan) *Memory {
	size := plan.WorkspaceSize()
	if size == 0 {
		return &Memory{}
	}
	buffer := make([]byte, size+3*launch.WorkspaceAlignment)
	first := 2*launch.WorkspaceAlignment - int64(uintptr(unsafe.Pointer(&buffer[0]))%launch.WorkspaceAlignment)
	w := &Memory{Tensor: tensor.Of(unsafe.Slice((*uint8)(&buffer[first]), size)), Bytes: buffer, first: first}
	w.Device = plan.Device()
	return w
}

// Run poisons every output and runs the plan with some of them. What is no output of the run may
// not be written.
func (r *arrangement) Run(t *testing.T, outputs []int) {
	t.Helper()
	args := make([]tensor.Tensor, len(r.Operands))
	for i, m := range r.Operands {
		if m != nil {
			copy(m.Bytes, m.Before)
			if !ProblemOf(r.plan).Operands[i].Out || slices.Contains(outputs, i) {
				args[i] = m.Tensor
			}
		}
	}
	r.Workspace.Poison()
	require.NoError(t, r.plan.RunOrdered(0, r.Workspace.Tensor, args), r.name)
	r.Workspace.RequireOnlyElementsWritten(t, "the workspace, "+r.name)
	for i, m := range r.Operands {
		if m != nil && !slices.Contains(outputs, i) {
			m.RequireUntouched(t, r.OperandName(i))
		}
	}
}

// OperandName names operand i in messages of failures.
func (r *arrangement) OperandName(i int) string {
	return ProblemOf(r.plan).Operands[i].Name + ", " + r.name
}

// written is the memory of every output after a run, which may have touched its elements alone.
func (r *arrangement) written(t *testing.T) (memories [][]byte) {
	t.Helper()
	for _, i := range r.Outputs {
		r.Operands[i].RequireOnlyElementsWritten(t, r.OperandName(i))
		memories = append(memories, slices.Clone(r.Operands[i].Bytes))
	}
	return memories
}

// Bits are the elements of every output, in whatever layout.
func (r *arrangement) Bits() (list [][]byte) {
	for _, i := range r.Outputs {
		list = append(list, r.Operands[i].Bits())
	}
	return list
}
