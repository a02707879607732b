package core

// #include "op_embedding_bag.h"
import "C"

import (
	"runtime"
	"unsafe"
)

// denseRows are the rows of a matrix as the loops of op_embedding_bag.c read them: float32 or float64 without gaps.
type denseRows struct {
	data uintptr
	step int64 // elements from row to row
	keep any   // the memory, where it is not the caller's
}

// makeDense is a matrix itself where it can be read in place, else a copy; of a matrix whose rows are one row, of that row.
func makeDense(t *Tensor) denseRows {
	if t.empty() {
		return denseRows{}
	}
	if (t.DType == Float32 || t.DType == Float64) && (t.Strides[1] == 1 || t.Shape[1] == 1) {
		return denseRows{data: t.Data, step: t.Strides[0]}
	}
	rows := t.Shape[0]
	if t.Strides[0] == 0 {
		rows = 1
	}
	d := denseRows{step: t.Shape[1]}
	if t.Strides[0] == 0 {
		d.step = 0
	}
	if t.DType == Float64 {
		copied := copyRows(t, rows, nil, &storages64)
		d.data, d.keep = uintptr(unsafe.Pointer(&copied[0])), copied
	} else {
		copied := copyRows(t, rows, nil, &storages32)
		d.data, d.keep = uintptr(unsafe.Pointer(&copied[0])), copied
	}
	return d
}

// copyRows widens rows of a matrix: the first ones, or those that are listed, of which noRow stands for any.
func copyRows[A accumulator](t *Tensor, rows int64, list []uint32, table *[len(dtypeRows)]storage[A]) []A {
	width := t.Shape[1]
	out := make([]A, rows*width)
	v := view{n: 1, regular: true, step: t.Strides[1]}
	v.extent[0], v.stride[0] = width, t.Strides[1]
	load := table[t.DType.row()].load
	spread(rows, max(1, grain/max(width, 1)), max(1, 2*grain/max(width, 1)), func(first, end int64) {
		if list == nil && t.Strides[1] == 1 && widenRows(out[first*width:end*width], t, first, end) {
			return
		}
		b := new(block[A])
		for row := first; row < end; row++ {
			from := row
			if list != nil {
				if list[row] == noRow {
					continue
				}
				from = int64(list[row])
			}
			source := *t
			source.Data += uintptr(from * t.Strides[0] * t.DType.Size())
			for at := int64(0); at < width; at += blockLen[A]() {
				n := min(blockLen[A](), width-at)
				copy(out[row*width+at:], load(b, &source, &v, at, n))
			}
		}
	})
	return out
}

// widenRows widens rows of 16-bit elements that lie side by side; it reports whether they do.
func widenRows[A accumulator](out []A, t *Tensor, first, end int64) bool {
	wide, single := any(out).([]float32)
	if !single || t.DType.Size() != 2 || t.Strides[0] < 0 {
		return false
	}
	width := t.Shape[1]
	runs, length := end-first, width
	if t.Strides[0] == width {
		runs, length = 1, width*(end-first)
	}
	for r := range runs {
		to, from := wide[r*length:][:length], (first+r)*t.Strides[0]
		if t.DType == Float16 {
			widenFloat16(to, elements[float16](t, from, length, 1))
		} else {
			widenBFloat16(to, elements[bfloat16](t, from, length, 1))
		}
	}
	return true
}

// float64s is a vector in float64.
func float64s(t *Tensor) []float64 {
	if t.empty() {
		return []float64{}
	}
	matrix := *t
	matrix.NDim, matrix.Shape, matrix.Strides = 2, [MaxRank]int64{1, t.Shape[0]}, [MaxRank]int64{0, t.Strides[0]}
	if t.DType == Float64 {
		return copyRows(&matrix, 1, nil, &storages64)
	}
	single := copyRows(&matrix, 1, nil, &storages32)
	wide := make([]float64, len(single))
	for i, value := range single {
		wide[i] = float64(value)
	}
	return wide
}

// sampleWeights writes d_per_sample_weights.
func (h *hostBags) sampleWeights() {
	weight, out := &h.args[bagWeight], &h.args[bagDsample]
	gaps := weight.Shape[1] > 1 && weight.Strides[1] != 1 && !weight.empty()
	v := view{n: 1, regular: true, step: out.Strides[0]}
	v.extent[0], v.stride[0] = out.Shape[0], out.Strides[0]
	const chunk = 1024
	spread(h.TotalIndices, chunk, max(chunk, (1<<15)/max(h.EmbeddingDim, 1)), func(first, end int64) {
		rows, dots := h.rows[first:end], make([]float64, end-first)
		var single, room []float32 // rows that the loop in C reads, or room for one
		var double []float64
		c := new(C.sw_bag_dots)
		*c = C.sw_bag_dots{
			dy: C.uintptr_t(h.dy.data), dy_bag: C.long(h.dy.step), bags: addressOf(h.bagOf[first:end]),
			out: addressOf(dots), columns: C.long(h.EmbeddingDim), n: C.long(end - first),
			weight: C.uintptr_t(weight.Data), weight_row: C.long(weight.Strides[0]), narrow: C.long(weight.DType.row()),
		}
		switch {
		case gaps && weight.DType == Float64:
			double = copyRows(weight, int64(len(rows)), rows, &storages64)
			c.weight = addressOf(double)
		case gaps:
			single = copyRows(weight, int64(len(rows)), rows, &storages32)
			c.weight = addressOf(single)
		case weight.DType.Size() == 2:
			room = make([]float32, max(1, h.EmbeddingDim))
			c.room = addressOf(room)
		}
		if gaps {
			rows = counted(rows)
			c.weight_row = C.long(h.EmbeddingDim)
		}
		c.rows = addressOf(rows)
		if h.DType == Float64 {
			C.sw_bag_dots_f64(c)
			storages64[out.DType.row()].store(new(block[float64]), out, &v, first, dots)
		} else {
			C.sw_bag_dots_f32(c)
			b := new(block[float32])
			for i, dot := range dots {
				b.wide[i] = float32(dot)
			}
			storages32[out.DType.row()].store(b, out, &v, first, b.wide[:len(dots)])
		}
		runtime.KeepAlive([]any{single, double, room, rows})
	})
}

// counted numbers the rows of a list that are rows.
func counted(rows []uint32) []uint32 {
	numbers := make([]uint32, len(rows))
	for i, row := range rows {
		if numbers[i] = uint32(i); row == noRow {
			numbers[i] = noRow
		}
	}
	return numbers
}
