package scan_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/scan"
	"github.com/sternway/sternway/core/internal/tensor"
)

// scan_fill and linear_pass have a thread for each sequence of each row. It alone finds a run whose
// scan is launched before these are found to be too many for a grid.
func TestMoreSequencesThanAGridHas(t *testing.T) {
	for _, c := range []struct {
		d        ops.Descriptor
		operands []string
	}{
		{scan.Scan{Kind: "cumsum", Shape: []int64{4, 1 << 20}, DType: tensor.Float32, NumSequences: coretest.Given[int64](1 << 20), Exclusive: true}, []string{"x", "cu_seqlens", "y"}},
		{scan.LinearRecurrence{Shape: []int64{4, 1 << 20}, DType: tensor.Float32, NumSequences: coretest.Given[int64](1 << 20)}, []string{"a", "b", "cu_seqlens", "h", "final_state"}},
		{scan.LinearRecurrence{Shape: []int64{0, 1 << 20}, DType: tensor.Float32, NumSequences: coretest.Given[int64](1 << 20)}, []string{"a", "b", "cu_seqlens", "h", "final_state"}},
	} {
		fake := (&coretest.FakeCUDA{Devices: 1, NumSMs: 132}).Install(t)
		plan, err := core.Select(c.d, tensor.CUDA(0), ops.Preference{})
		require.NoError(t, err)
		args, workspace := coretest.DeviceArgs(plan, c.operands...)
		err = plan.RunOrdered(0, workspace, args)
		var refusal *errs.Error
		require.ErrorAs(t, err, &refusal)
		require.Equal(t, errs.Unsupported, refusal.Kind)
		require.Equal(t, "cu_seqlens", refusal.Operand)
		require.Equal(t, "of at most 524287 sequences of 1048576 rows on a GPU", refusal.Wanted)
		require.Empty(t, fake.Launches)
	}
}
