package core

import "math"

// scanTensor is a new contiguous tensor of a dtype with these numbers.
func scanTensor(dtype DType, shape []int64, values []float64) Tensor {
	if len(shape) == 0 {
		t := scanTensor(dtype, []int64{1}, values)
		t.NDim = 0
		return t
	}
	switch dtype {
	case Float64:
		return Of(append([]float64{}, values...), shape...)
	case Float32:
		out := make([]float32, len(values))
		for i, v := range values {
			out[i] = float32(v)
		}
		return Of(out, shape...)
	}
	narrow := make([]float32, len(values))
	for i, v := range values {
		narrow[i] = float32(v)
	}
	out := make([]uint16, len(values))
	if dtype == Float16 {
		half := make([]float16, len(values))
		narrowFloat16(half, narrow)
		for i, v := range half {
			out[i] = uint16(v)
		}
	} else {
		half := make([]bfloat16, len(values))
		narrowBFloat16(half, narrow)
		for i, v := range half {
			out[i] = uint16(v)
		}
	}
	return Of(out, shape...).As(dtype)
}

// scanValues are the numbers of a contiguous tensor.
func scanValues(t Tensor) []float64 {
	n, _ := product(t.shape())
	if n == 0 {
		return nil
	}
	out, narrow := make([]float64, n), make([]float32, n)
	switch t.DType {
	case Float64:
		copy(out, elements[float64](&t, 0, n, 1))
		return out
	case Float32:
		copy(narrow, elements[float32](&t, 0, n, 1))
	case Float16:
		widenFloat16(narrow, elements[float16](&t, 0, n, 1))
	case BFloat16:
		widenBFloat16(narrow, elements[bfloat16](&t, 0, n, 1))
	}
	for i, v := range narrow {
		out[i] = float64(v)
	}
	return out
}

// scanRows calls body with the offsets of every row of a contiguous tensor, in the order of positions.
func scanRows(shape []int64, dim int, body func(at []int64)) {
	n, inner := int64(1), int64(1)
	if len(shape) > 0 {
		n = shape[dim]
		for _, e := range shape[dim+1:] {
			inner *= e
		}
	}
	total, _ := product(shape)
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

func scanIndexTensor(shape, indices []int64) Tensor {
	t := Of(append([]int64{}, indices...))
	t.NDim = int32(len(shape))
	copy(t.Shape[:], shape)
	copy(t.Strides[:], compact(shape))
	return t
}
