package selective_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/selective"
	"github.com/sternway/sternway/core/internal/tensor"
)

// uniform draws numbers of a range.
func uniform(low, high float64) func(*rand.Rand) float64 {
	return func(r *rand.Rand) float64 { return low + (high-low)*r.Float64() }
}

// Vectors of all widths give the same bits. It alone finds an operation that one width rounds
// differently, such as a fused product, or lanes that are summed in another order. Decays reach
// from 1 over subnormal numbers to 0, and 21 channels leave lanes empty.
func TestVectorWidthsAgree(t *testing.T) {
	width := cpu.VectorWidth()
	t.Cleanup(func() { cpu.SetVectorWidth(width) })
	d := selective.SelectiveScan{Batch: 2, Dim: 21, Length: 300, N: 5, HasD: true, HasZ: true, HasBias: true, DeltaSoftplus: true}
	constant := d
	constant.ConstantB, constant.ConstantC, constant.DeltaSoftplus = true, true, false
	values := map[string]func(*rand.Rand) float64{"A": uniform(-40, 0), "delta": uniform(0, 3), "delta_bias": uniform(-0.2, 0)}
	for _, sample := range []ops.Descriptor{d, selective.SelectiveScanBackward(d), constant, selective.SelectiveScanBackward(constant)} {
		for _, dtype := range tensor.Floats {
			plan, err := core.Select(coretest.WithDType(sample, dtype), tensor.CPU, ops.Preference{})
			require.NoError(t, err)
			trial := coretest.Trial{Descriptor: sample, Values: values, Without: []string{"chunk_states"}}
			arrangement := trial.Arrange(t, plan, &coretest.Schemes[0])
			var first [][]byte
			for _, bits := range []int{64, 256, 512} {
				if bits > width {
					t.Logf("this processor has no vectors of %d bits", bits)
					continue
				}
				cpu.SetVectorWidth(bits)
				arrangement.Run(t, arrangement.Outputs)
				if found := arrangement.Bits(); first == nil {
					first = found
				} else {
					require.Equal(t, first, found, "%s of %s in vectors of %d bits", sample.Family(), dtype, bits)
				}
			}
		}
	}
}
