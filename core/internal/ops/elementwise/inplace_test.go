package elementwise_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/elementwise"
	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/coretest"
	tensorpkg "github.com/sternway/sternway/core/internal/tensor"
)

// An output that is exactly an input: right where it is due, and elsewhere refused with every byte
// in place, but the first input may be right.
func TestInPlace(t *testing.T) {
	shape := []int64{5, 67}
	weight := ops.Scalar(0.3)
	number, tensor := elementwise.LerpBackward{Shape: shape, Weight: &weight}, elementwise.LerpBackward{Shape: shape}
	dequantize := elementwise.DequantizePerTokenBackward{Shape: shape, QDType: tensorpkg.Int8}
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
		{dequantize, []string{"q", "zero_point", "dscale", "dzero_point"}, "dx", "dy", true},
		{dequantize, []string{"zero_point", "dscale", "dzero_point"}, "dx", "dy", true},
		{dequantize, []string{"zero_point", "dzero_point"}, "dx", "dy", false},
		{dequantize, []string{"zero_point", "dzero_point"}, "dscale", "scale", false},
		{dequantize, nil, "dzero_point", "zero_point", false},
		{fake, []string{"zero_point", "dscale", "dzero_point"}, "dx", "dy", false},
		{fake, []string{"zero_point", "dscale", "dzero_point"}, "dx", "x", false},
		{fake, nil, "dx", "dy", false},
		{elementwise.FakeQuantizePerToken{Shape: shape, QuantMin: -8, QuantMax: 7}, nil, "y", "x", true},
		{elementwise.FakeQuantizePerToken{Shape: []int64{5, 1}, QuantMin: -8, QuantMax: 7}, []string{"zero_point"}, "y", "scale", false},
	} {
		c := coretest.Trial{Descriptor: row.descriptor, Without: row.without, DTypes: zero}
		for _, device := range []tensorpkg.Device{tensorpkg.CPU, tensorpkg.CUDA(0)} {
			t.Run(fmt.Sprintf("%s %s over %s without %v on %s", row.descriptor.Family(), row.output, row.input, row.without, device), func(t *testing.T) {
				if device != tensorpkg.CPU {
					coretest.ModelKernels(t)
				}
				for _, dtype := range tensorpkg.Floats {
					requireInPlace(t, &c, device, dtype, row.output, row.input, row.due)
				}
			})
		}
	}
}

func requireInPlace(t *testing.T, c *coretest.Trial, device tensorpkg.Device, dtype tensorpkg.DType, output, input string, due bool) {
	plan, err := core.Select(coretest.WithDType(c.Descriptor, dtype), device, ops.Preference{})
	require.NoError(t, err)
	out, in := slices.Index(plan.Operands(), output), slices.Index(plan.Operands(), input)
	for _, l := range []coretest.Layout{coretest.Contiguous, coretest.Permuted, coretest.Gapped, coretest.Flipped} {
		r := c.Arrange(t, plan, &coretest.Scheme{Name: l.Name, Ins: []coretest.Layout{l}, Outs: []coretest.Layout{l}})
		r.Run(t, r.Outputs)
		want := r.Operands[out].Bits()
		args := make([]tensorpkg.Tensor, len(r.Operands))
		for i, m := range r.Operands {
			if m != nil {
				args[i] = m.Tensor
				copy(m.Bytes, m.Before)
			}
		}
		args[out] = args[in]
		err := plan.RunOrdered(0, r.Workspace.Tensor, args)
		if err == nil {
			require.Zero(t, in, "only the first input is in place")
			require.Equal(t, want, r.Operands[in].Bits(), "%s, %s", dtype, l.Name)
			r.Operands[in].RequireOnlyElementsWritten(t, r.OperandName(in))
			continue
		}
		require.ErrorIs(t, err, errs.ErrInvalidProblem)
		for i, m := range r.Operands {
			if m != nil {
				m.RequireUntouched(t, r.OperandName(i))
			}
		}
		require.False(t, due, "%s, %s: %v", dtype, l.Name, err)
	}
}
