package pytensor

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
)

// The Python side of Read is tested in python/tests/test_seam.py, through the installed wheel.

func TestReadOutsidePython(t *testing.T) {
	stream := int64(-1)
	n, err := Read(1, make([]core.Tensor, 2), &stream)
	var refusal *core.Error
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, core.Internal, refusal.Kind)
	require.Equal(t, "read inside a Python process", refusal.Wanted)
	require.Zero(t, n)
	require.Equal(t, int64(-1), stream)
}

func TestReadAllocatesOnlyItsError(t *testing.T) {
	out, stream := make([]core.Tensor, 2), int64(0)
	allocations := testing.AllocsPerRun(100, func() { _, _ = Read(1, out, &stream) })
	require.LessOrEqual(t, allocations, 1.0)
}
