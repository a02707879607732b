package core

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheckShapesJSON(t *testing.T) {
	plan, err := Select(LerpBackward{Shape: []int64{2, 3}, DType: Float32}, CPU, Preference{})
	require.NoError(t, err)
	for operands, want := range map[string]string{
		`{"dy": ["float32", [2, 3]], "weight": ["float32", [2, 3]], "da": ["float32", [2, 3]]}`:                      "",
		`{"dy": ["float32", [2, 3]], "da": ["float32", [2, 3]]}`:                                                     "weight must be given",
		`{"dy": ["float32", [2]], "weight": ["float32", [2, 3]], "da": ["float32", [2, 3]]}`:                         "dy must be of shape [2, 3], got [2]",
		`{"dy": ["int8", [2, 3]], "weight": ["float32", [2, 3]], "da": ["float32", [2, 3]]}`:                         "dy must be float32",
		`{"dy": ["float32", [1, 1, 1, 1, 1, 1, 1, 2, 3]], "weight": ["float32", [2, 3]], "da": ["float32", [2, 3]]}`: "of rank 0 to 8, got rank 9",
		`{"dz": ["float32", [2, 3]]}`: "dz must be one of",
		`{"dy": ["abacus", [2, 3]]}`:  "dy must be of a dtype that an operand can have",
		`{"dy": ["float32", "long"]}`: "dy must be of a shape",
		`[]`:                          "an object of dtypes and shapes",
	} {
		err := plan.CheckShapesJSON(operands)
		if want == "" {
			require.NoError(t, err, operands)
			continue
		}
		require.ErrorContains(t, err, want, operands)
	}
}
