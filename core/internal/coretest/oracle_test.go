package coretest

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core/internal/tensor"
)

// Every oracle of a gradient is the derivative of its forward: central differences for every
// element of every operand.
func TestOraclesAgainstFiniteDifferences(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 1))
	for family, o := range operations {
		require.Equal(t, strings.HasSuffix(family, "_backward"), len(o.differences) > 0, "differences of %s", family)
		for _, row := range o.differences {
			t.Run(row.name, func(t *testing.T) { row.require(t, random) })
		}
	}
}

func (row *difference) require(t *testing.T, random *rand.Rand) {
	d, shape := row.definition, row.shapes[0]
	operands, in := row.shapes[:], [4][]float64{}
	for i, shape := range row.shapes {
		n, _ := tensor.Product(shape)
		for range n {
			if shape != nil {
				in[i] = append(in[i], row.values[i](random))
			}
		}
	}
	for _, i := range d.gradients {
		operands = append(operands, row.shapes[i])
	}
	out, offsets := d.evaluate(shape, operands, in), d.offsets(shape, row.shapes[:])
	for o, i := range d.gradients {
		require.Len(t, out[o], len(in[i]))
		for k := range in[i] {
			require.InDelta(t, d.slope(offsets, in, i, k), out[o][k].value(), 1e-6, "element %d of operand %d", k, i)
		}
	}
}
