package core

import (
	"fmt"
	"slices"
	"testing"

	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/elementwise"
	"github.com/stretchr/testify/require"

	tensorpkg "github.com/sternway/sternway/core/internal/tensor"
)

// An output that is exactly an input: right where it is due, and elsewhere refused with every byte in place, but dy may be right.
func TestInPlace(t *testing.T) {
	shape := []int64{5, 67}
	weight := ops.Scalar(0.3)
	number, tensor := elementwise.LerpBackward{Shape: shape, Weight: &weight}, elementwise.LerpBackward{Shape: shape}
	dequantise := elementwise.DequantizePerTokenBackward{Shape: shape, QDType: tensorpkg.Int8}
	fake := elementwise.FakeQuantizePerTokenBackward{Shape: shape, QuantMin: -8, QuantMax: 7}
	zero := map[string]tensorpkg.DType{"zero_point": tensorpkg.Float32, "dzero_point": tensorpkg.Float32}
	for _, row := range []struct {
		descriptor    ops.Descriptor
		without       []string
		output, input string
		due           bool
	}{
		{number, []string{"weight", "a", "b", "db", "dweight"}, "da", "dy", true},
		{number, []string{"weight", "a", "b", "da", "dweight"}, "db", "dy", true},
		{tensor, []string{"a", "b", "db", "dweight"}, "da", "dy", true},
		{tensor, []string{"a", "b", "da", "dweight"}, "db", "dy", true},
		{tensor, []string{"weight", "da", "db"}, "dweight", "dy", true},
		{tensor, []string{"a", "b", "da", "dweight"}, "db", "weight", false},
		{tensor, []string{"weight", "da", "db"}, "dweight", "b", false},
		{tensor, []string{"a", "b", "dweight"}, "da", "dy", false},
		{tensor, nil, "dweight", "weight", false},
		{elementwise.LerpBackward{Shape: shape, WeightShape: []int64{1, 67}}, []string{"a", "b", "dweight"}, "da", "dy", false},
		{dequantise, []string{"q", "zero_point", "dscale", "dzero_point"}, "dx", "dy", true},
		{dequantise, []string{"zero_point", "dscale", "dzero_point"}, "dx", "dy", true},
		{dequantise, []string{"zero_point", "dzero_point"}, "dx", "dy", false},
		{dequantise, []string{"zero_point", "dzero_point"}, "dscale", "scale", false},
		{dequantise, nil, "dzero_point", "zero_point", false},
		{fake, []string{"zero_point", "dscale", "dzero_point"}, "dx", "dy", false},
		{fake, []string{"zero_point", "dscale", "dzero_point"}, "dx", "x", false},
		{fake, nil, "dx", "dy", false},
	} {
		c := trial{descriptor: row.descriptor, without: row.without, dtypes: zero}
		for _, device := range []tensorpkg.Device{tensorpkg.CPU, tensorpkg.CUDA(0)} {
			t.Run(fmt.Sprintf("%s %s over %s without %v on %s", row.descriptor.Family(), row.output, row.input, row.without, device), func(t *testing.T) {
				if device != tensorpkg.CPU {
					modelKernels(t)
				}
				for _, dtype := range tensorpkg.Floats {
					c.inPlace(t, device, dtype, row.output, row.input, row.due)
				}
			})
		}
	}
}

func (c *trial) inPlace(t *testing.T, device tensorpkg.Device, dtype tensorpkg.DType, output, input string, due bool) {
	descriptor, shape := instantiate(c.descriptor, dtype)
	plan, err := Select(descriptor, device, ops.Preference{})
	require.NoError(t, err)
	out, in := slices.Index(plan.Operands(), output), slices.Index(plan.Operands(), input)
	for _, l := range []layout{contiguous, permuted, gapped, flipped} {
		r := c.arrange(t, plan, shape, &scheme{name: l.name, ins: []layout{l}, outs: []layout{l}})
		r.run(t, r.outputs)
		want := r.operands[out].bits()
		args := make([]tensorpkg.Tensor, len(r.operands))
		for i, m := range r.operands {
			if m != nil {
				args[i] = m.Tensor
				copy(m.bytes, m.before)
			}
		}
		args[out] = args[in]
		err := plan.RunOrdered(0, r.workspace.Tensor, args)
		if err == nil {
			require.Equal(t, "dy", input)
			require.Equal(t, want, r.operands[in].bits(), "%s, %s", dtype, l.name)
			r.operands[in].requireOnlyElementsWritten(t, r.operandName(in))
			continue
		}
		require.ErrorIs(t, err, errs.ErrInvalidProblem)
		for i, m := range r.operands {
			if m != nil {
				m.requireUntouched(t, r.operandName(i))
			}
		}
		require.False(t, due, "%s, %s: %v", dtype, l.name, err)
	}
}
