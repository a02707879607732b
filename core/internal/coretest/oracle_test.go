package coretest

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/elementwise"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/stretchr/testify/require"
)

// Every oracle is the derivative of its forward: central differences for every element of every
// operand. The bounds of fake quantize lie between two levels here, since the forward has a kink
// where a level lies on a bound.
func TestOraclesAgainstFiniteDifferences(t *testing.T) {
	weight, data, token := ops.Scalar(-0.3), []int64{2, 3, 4}, []int64{2, 3, 1}
	random := rand.New(rand.NewPCG(3, 1))
	normal, positive := random.NormFloat64, func() float64 { return 0.5 + random.Float64() }
	whole := func() float64 { return math.Round(40 * random.NormFloat64()) }
	middle := func() float64 { return 0.3 + 0.1*random.Float64() + float64(random.IntN(60)-30) }
	for _, row := range []struct {
		name       string
		definition *definition
		shapes     [4][]int64 // of the inputs; nil: absent
		values     [4]func() float64
	}{
		{"lerp", lerpDefinition(elementwise.LerpBackward{}), [4][]int64{data, data, data, data}, [4]func() float64{normal, normal, normal, normal}},
		{"lerp broadcast", lerpDefinition(elementwise.LerpBackward{}), [4][]int64{data, {4}, {3, 1}, {2, 1, 4}}, [4]func() float64{normal, normal, normal, normal}},
		{"lerp 0-d weight", lerpDefinition(elementwise.LerpBackward{}), [4][]int64{data, {}, data, {1}}, [4]func() float64{normal, normal, normal, normal}},
		{"lerp number", lerpDefinition(elementwise.LerpBackward{Weight: &weight}), [4][]int64{data, nil, {3, 1}, data}, [4]func() float64{normal, nil, normal, normal}},
		{"dequantize", dequantizeDefinition(), [4][]int64{data, token, data, {2, 3}}, [4]func() float64{normal, positive, whole, normal}},
		{"dequantize symmetric", dequantizeDefinition(), [4][]int64{data, token, data, nil}, [4]func() float64{normal, positive, whole, nil}},
		{"fake quantize", fakeQuantizeDefinition(-8.5, 7.5, true), [4][]int64{data, data, {2, 3}, token}, [4]func() float64{normal, middle, positive, normal}},
		{"fake quantize symmetric", fakeQuantizeDefinition(-8.5, 7.5, false), [4][]int64{data, data, token, nil}, [4]func() float64{normal, middle, positive, nil}},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := row.definition
			operands, in := row.shapes[:], [4][]float64{}
			for i, shape := range row.shapes {
				n, _ := tensor.Product(shape)
				for range n {
					if shape != nil {
						in[i] = append(in[i], row.values[i]())
					}
				}
			}
			for _, i := range d.gradients {
				operands = append(operands, row.shapes[i])
			}
			out, offsets := d.evaluate(data, operands, in), d.offsets(data, row.shapes[:])
			for o, i := range d.gradients {
				require.Len(t, out[o], len(in[i]))
				for k := range in[i] {
					require.InDelta(t, d.difference(offsets, in, i, k), out[o][k].value(), 1e-6, "element %d of operand %d", k, i)
				}
			}
		})
	}
}
