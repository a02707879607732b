package selective

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core/internal/tensor"
)

// The gradient fits into the shared memory of a CTA of compute capability 8.6, 99 KiB. It alone
// finds a row too many, for which a larger GPU has room.
func TestSharedMemoryOfSmallGPUs(t *testing.T) {
	const most = 99 << 10
	for dtype, n := range map[tensor.DType]int64{tensor.Float32: 64, tensor.Float64: 57} {
		d := SelectiveScan{Batch: 8, Dim: 2048, Length: 2048, N: n, DType: dtype}
		p, err := d.check(backward)
		require.NoError(t, err)
		g := &cudaProgram{program: &program{problem: p, isBackward: true}}
		g.divide(84)
		require.LessOrEqual(t, g.sharedBytes(4*g.statesAtOnce()+Warps, g.roundBytes(g.layout.rounds)), uint32(most), dtype.String())
	}
}
