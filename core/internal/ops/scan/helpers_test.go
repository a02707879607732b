package scan_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/scan"
	"github.com/sternway/sternway/core/internal/ops/scan/gpu"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/stretchr/testify/require"
)

// gradientOperands are the operands of a gradient, without indices.
func gradientOperands(kind string) []string {
	if scan.ByName[kind].ReadsX {
		return []string{"dy", "x", "dx"}
	}
	return []string{"dy", "dx"}
}

// scanTensor is a new contiguous tensor of a dtype with these numbers.
func scanTensor(dtype tensor.DType, shape []int64, values []float64) tensor.Tensor {
	if len(shape) == 0 {
		t := scanTensor(dtype, []int64{1}, values)
		t.NDim = 0
		return t
	}
	switch dtype {
	case tensor.Float64:
		return tensor.Of(append([]float64{}, values...), shape...)
	case tensor.Float32:
		out := make([]float32, len(values))
		for i, v := range values {
			out[i] = float32(v)
		}
		return tensor.Of(out, shape...)
	}
	narrow := make([]float32, len(values))
	for i, v := range values {
		narrow[i] = float32(v)
	}
	out := make([]uint16, len(values))
	cpu.Narrow(dtype, out, narrow)
	return tensor.Of(out, shape...).As(dtype)
}

// scanValues are the numbers of a contiguous tensor.
func scanValues(t tensor.Tensor) []float64 {
	n, _ := tensor.Product(t.Extents())
	if n == 0 {
		return nil
	}
	out, narrow := make([]float64, n), make([]float32, n)
	switch t.DType {
	case tensor.Float64:
		copy(out, cpu.Elements[float64](&t, 0, n, 1))
		return out
	case tensor.Float32:
		copy(narrow, cpu.Elements[float32](&t, 0, n, 1))
	default:
		cpu.Widen(t.DType, narrow, cpu.Elements[uint16](&t, 0, n, 1))
	}
	for i, v := range narrow {
		out[i] = float64(v)
	}
	return out
}

// scanRows calls body with the offsets of every row of a contiguous tensor, in the order of
// positions.
func scanRows(shape []int64, dim int, body func(at []int64)) {
	n, inner := int64(1), int64(1)
	if len(shape) > 0 {
		n = shape[dim]
		for _, e := range shape[dim+1:] {
			inner *= e
		}
	}
	total, _ := tensor.Product(shape)
	at := make([]int64, n)
	for row := range total / max(n, 1) {
		for k := range at {
			at[k] = row/inner*inner*n + int64(k)*inner + row%inner
		}
		body(at)
	}
}

// scanIndices are the positions that a cumulative maximum returns, the last of equal values.
func scanIndices(x []float64, shape []int64, dim int) []int64 {
	indices := make([]int64, len(x))
	scanRows(shape, dim, func(at []int64) {
		best := 0
		for k := range at {
			if v, b := x[at[k]], x[at[best]]; v >= b || math.IsNaN(v) {
				best = k
			}
			indices[at[k]] = int64(best)
		}
	})
	return indices
}

func scanIndexTensor(shape, indices []int64) tensor.Tensor {
	t := tensor.Of(append([]int64{}, indices...))
	t.NDim = int32(len(shape))
	copy(t.Shape[:], shape)
	copy(t.Strides[:], tensor.Compact(shape))
	return t
}

// scanCase is one run on contiguous operands.
type scanCase struct {
	kind    string
	shape   []int64
	dim     int
	reverse bool
	tie     string
	indices bool
	dtype   tensor.DType
}

func (c scanCase) String() string {
	return fmt.Sprintf("%s/%s/dim%d/reverse=%t/tie=%s/indices=%t/%s", c.kind, tensor.ShapeText(c.shape), c.dim, c.reverse, c.tie, c.indices, c.dtype)
}

func (c scanCase) descriptor() scan.ScanBackward {
	return scan.ScanBackward{Kind: c.kind, Shape: c.shape, DType: c.dtype, Dim: int64(c.dim), Reverse: c.reverse, Tie: c.tie}
}

// run gives dx of contiguous operands, written between guard zones over NaN.
func (c scanCase) run(t testing.TB, dy, x []float64, indices []int64) []float64 {
	plan, err := core.Select(c.descriptor(), tensor.CPU, ops.Preference{})
	require.NoError(t, err)
	args := core.Args{"dy": scanTensor(c.dtype, c.shape, dy)}
	if indices != nil {
		args["indices"] = scanIndexTensor(c.shape, indices)
	} else if scan.ByName[c.kind].ReadsX {
		args["x"] = scanTensor(c.dtype, c.shape, x)
	}
	const guard = 16
	n, _ := tensor.Product(c.shape)
	poison := make([]float64, n+2*guard)
	for i := range poison {
		poison[i] = scanNaN
	}
	whole := scanTensor(c.dtype, []int64{n + 2*guard}, poison)
	dx := whole
	dx.Data += uintptr(guard * c.dtype.Size())
	dx.NDim = int32(len(c.shape))
	copy(dx.Shape[:], c.shape)
	copy(dx.Strides[:], tensor.Compact(c.shape))
	args["dx"] = dx
	require.NoError(t, plan.Run(0, tensor.Tensor{}, args))
	out := scanValues(whole)
	ahead, behind := out[:guard], out[int64(guard)+n:]
	for i := range guard {
		require.True(t, math.IsNaN(ahead[i]) && math.IsNaN(behind[i]), "%s wrote beside its output: %v ahead of it, %v behind it", c, ahead, behind)
	}
	return out[guard : int64(guard)+n]
}

// check compares a run with the definition, element by element.
func (c scanCase) check(t *testing.T, dy, x []float64) {
	t.Helper()
	dy, x = scanValues(scanTensor(c.dtype, c.shape, dy)), scanValues(scanTensor(c.dtype, c.shape, x))
	var indices []int64
	if c.indices {
		indices = make([]int64, len(x))
		scanRows(c.shape, c.dim, func(at []int64) {
			for k, j := range oracleIndices(c, scanOrder(c, x, at)) {
				indices[at[scanPlace(c, k, len(at))]] = int64(scanPlace(c, int(j), len(at)))
			}
		})
	}
	c.requireDefinition(t, dy, x, c.run(t, dy, x, indices))
}

// requireDefinition compares dx with the definition, element by element.
func (c scanCase) requireDefinition(t *testing.T, dy, x, got []float64) {
	t.Helper()
	scanRows(c.shape, c.dim, func(at []int64) {
		want, size := scanOracle(c, scanOrder(c, dy, at), scanOrder(c, x, at), nil)
		for k := range want {
			value := got[at[scanPlace(c, k, len(at))]]
			if !scanClose(c, value, want[k], size[k], len(at)) {
				t.Fatalf("%s: position %d of the row at %d is %v, not %v", c, k, at[0], value, want[k])
			}
		}
	})
}

func scanPlace(c scanCase, k, n int) int {
	if c.reverse {
		return n - 1 - k
	}
	return k
}

func scanOrder(c scanCase, values []float64, at []int64) []float64 {
	row := make([]float64, len(at))
	for k := range row {
		row[k] = values[at[scanPlace(c, k, len(at))]]
	}
	return row
}

// scanClose allows the rounding of the result and what n steps in float64 lose.
func scanClose(c scanCase, got, want, size float64, n int) bool {
	if math.IsNaN(want) || math.IsInf(want, 0) {
		return got == want || math.IsNaN(got) && math.IsNaN(want)
	}
	largest := map[tensor.DType]float64{tensor.Float32: math.MaxFloat32, tensor.Float64: math.MaxFloat64, tensor.Float16: 65504, tensor.BFloat16: 3.38e38}[c.dtype]
	if math.Abs(want) > largest*(1-1e-7) {
		return math.IsInf(got, 0) || math.Abs(got) > largest*(1-1e-2)
	}
	unit := map[tensor.DType]float64{tensor.Float32: 0x1p-24, tensor.Float64: 0x1p-53, tensor.Float16: 0x1p-11, tensor.BFloat16: 0x1p-8}[c.dtype]
	least := map[tensor.DType]float64{tensor.Float32: 0x1p-149, tensor.Float64: 0x1p-1074, tensor.Float16: 0x1p-24, tensor.BFloat16: 0x1p-133}[c.dtype]
	carried := 0x1p-53 * (8 + 4*math.Sqrt(float64(n))) * size
	return math.Abs(got-want) <= unit*math.Abs(want)*1.001+carried+least
}

// hasFastPath reports whether rejected rows of a kind are recomputed by a fallback pass.
func hasFastPath(kind string) bool {
	return slices.ContainsFunc(gpu.Kinds, func(k *gpu.Kind) bool { return strings.EqualFold(k.Name, kind) && k.HasFastPath() })
}
