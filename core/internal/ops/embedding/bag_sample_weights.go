package embedding

// #cgo CFLAGS: -O2
// #include "bag.h"
import "C"

import (
	"unsafe"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file computes the gradient of per_sample_weights on the CPU.

// denseRows is a matrix with dense rows, as the loops of bag.c read it: in place if possible,
// otherwise a copy in float32 or float64.
type denseRows struct {
	data   uintptr
	step   int64 // row stride in elements
	dtype  tensor.DType
	copy32 []float32
	copy64 []float64
}

// read points d to a matrix, or to a copy of it. wide requires 32 or 64 bits per element. A matrix
// with row stride 0 is copied as one row.
func (d *denseRows) read(t *tensor.Tensor, wide bool) {
	d.data, d.step, d.dtype = t.Data, t.Strides[0], t.DType
	if t.Empty() || (!t.DType.IsNarrow() || !wide) && (t.Strides[1] == 1 || t.Shape[1] == 1) {
		return
	}
	rows := t.Shape[0]
	if d.step = t.Shape[1]; t.Strides[0] == 0 {
		rows, d.step = 1, 0
	}
	if t.DType == tensor.Float64 {
		d.copy64 = copyRows(grow(d.copy64, rows*t.Shape[1]), t, rows, []uint32(nil), &cpu.Storages64)
		d.data = uintptr(addressOf(d.copy64))
		return
	}
	d.copy32 = copyRows(grow(d.copy32, rows*t.Shape[1]), t, rows, []uint32(nil), &cpu.Storages32)
	d.data, d.dtype = uintptr(addressOf(d.copy32)), tensor.Float32
}

// denseRow is a range of columns of a row.
func denseRow[A cpu.Accumulator](d *denseRows, row, column, columns int64) []A {
	var a A
	return unsafe.Slice((*A)(cpu.Pointer(d.data+uintptr((row*d.step+column)*int64(unsafe.Sizeof(a))))), columns)
}

// copyRows converts rows of a matrix to the accumulator type: the first rows, or the listed rows,
// where noRow is skipped.
func copyRows[A cpu.Accumulator, N number](out []A, t *tensor.Tensor, rows int64, list []N, table *[len(tensor.DTypeRows)]cpu.Storage[A]) []A {
	width := t.Shape[1]
	v := cpu.View{N: 1, Regular: true, Step: t.Strides[1]}
	v.Extent[0], v.Stride[0] = width, t.Strides[1]
	load := table[t.DType.Row()].Load
	parallelFor(rows, max(1, cpu.Grain/max(width, 1)), max(1, 2*cpu.Grain/max(width, 1)), func(first, end int64) {
		if list == nil && t.Strides[1] == 1 && widenRows(out[first*width:end*width], t, first, end) {
			return
		}
		b := new(cpu.Block[A])
		for row := first; row < end; row++ {
			from := row
			if list != nil {
				if list[row] == noRow[N]() {
					continue
				}
				from = int64(list[row])
			}
			source := *t
			source.Data += uintptr(from * t.Strides[0] * t.DType.Size())
			for at := int64(0); at < width; at += cpu.BlockLen[A]() {
				n := min(cpu.BlockLen[A](), width-at)
				copy(out[row*width+at:], load(b, &source, &v, at, n))
			}
		}
	})
	return out
}

// widenRows converts rows of dense elements of at most 16 bits to float32; it reports false if the
// types or strides do not suit.
func widenRows[A cpu.Accumulator](out []A, t *tensor.Tensor, first, end int64) bool {
	wide, single := any(out).([]float32)
	if !single || !t.DType.IsNarrow() || t.Strides[0] < 0 {
		return false
	}
	width := t.Shape[1]
	runs, length := end-first, width
	if t.Strides[0] == width {
		runs, length = 1, width*(end-first)
	}
	for r := range runs {
		to, from := wide[r*length:][:length], (first+r)*t.Strides[0]
		if t.DType.Size() == 1 {
			cpu.Widen(t.DType, to, cpu.Elements[uint8](t, from, length, 1))
		} else {
			cpu.Widen(t.DType, to, cpu.Elements[uint16](t, from, length, 1))
		}
	}
	return true
}

// sampleRows is d_per_sample_weights as a matrix, with one row if its elements have a constant
// stride.
func sampleRows(t *tensor.Tensor) *tensor.Tensor {
	all, one := *t, true
	switch {
	case t.NDim == 2 && t.Shape[1] == 1: // the column stride is irrelevant
	case t.NDim == 2:
		if all, one = asVector(t); !one {
			return t
		}
	}
	all.NDim, all.Shape[0], all.Shape[1], all.Strides[0], all.Strides[1] = 2, 1, all.Shape[0], 0, all.Strides[0]
	return &all
}

// sampleWeights writes d_per_sample_weights: dot products of rows of dy and of weight.
func (h *hostBags[N]) sampleWeights() {
	weight, out := &h.args[bagWeight], sampleRows(&h.args[BagDsample])
	gaps := weight.Shape[1] > 1 && weight.Strides[1] != 1 && !weight.Empty()
	parallelForWorkers(h.TotalIndices, 512, max(512, (1<<15)/max(h.EmbeddingDim, 1)), func(w *bagWorker[N], first, end int64) {
		n := end - first
		rows, bags := h.readRows(grow(w.rows, n), first), h.readBags(grow(w.bags, n), first)
		w.rows, w.bags, w.scales, w.scratch, w.single = rows, bags, grow(w.scales, n), grow(w.scratch, 2*h.EmbeddingDim), grow(w.single, 2*n)
		c := &w.dots
		*c = C.sw_bag_dots{
			out: C.sw_bag_out{
				data: C.uintptr_t(out.Data), single: addressOf(w.single), row: C.long(out.Strides[0]), column: C.long(out.Strides[1]),
				rows: C.long(out.Shape[0]), columns: C.long(out.Shape[1]), narrow: C.long(out.DType.Row()),
			},
			first: C.long(first), n: C.long(n),
			dy: C.uintptr_t(h.dy.data), dy_bag: C.long(h.dy.step), dy_narrow: C.long(h.dy.dtype.Row()),
			weight: C.uintptr_t(weight.Data), weight_row: C.long(weight.Strides[0]), weight_narrow: C.long(weight.DType.Row()),
			columns: C.long(h.EmbeddingDim), dots: addressOf(w.scales), scratch: addressOf(w.scratch),
		}
		if gaps {
			h.copyWeight(w, c)
		}
		c.bags, c.rows = addressOf(w.bags), addressOf(w.rows)
		switch double := h.DType == tensor.Float64; {
		case h.Wide && double:
			C.sw_bag_dots_f64_wide(c)
		case h.Wide:
			C.sw_bag_dots_f32_wide(c)
		case double:
			C.sw_bag_dots_f64(c)
		default:
			C.sw_bag_dots_f32(c)
		}
	})
}

// copyWeight copies the rows of weight that a task reads, if they are not dense.
func (h *hostBags[N]) copyWeight(w *bagWorker[N], c *C.sw_bag_dots) {
	weight, n := &h.args[bagWeight], int64(len(w.rows))
	if weight.DType == tensor.Float64 {
		w.sums = copyRows(grow(w.sums, n*h.EmbeddingDim), weight, n, w.rows, &cpu.Storages64)
		c.weight = addressOf(w.sums)
	} else {
		w.copied = copyRows(grow(w.copied, n*h.EmbeddingDim), weight, n, w.rows, &cpu.Storages32)
		c.weight, c.weight_narrow = addressOf(w.copied), C.long(tensor.Float32.Row())
	}
	c.weight_row = C.long(h.EmbeddingDim)
	for k, row := range w.rows {
		if row != noRow[N]() {
			w.rows[k] = N(k)
		}
	}
}
