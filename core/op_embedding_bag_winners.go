package core

// #include "op_embedding_bag.h"
import "C"

// bagTerms are elements of dy by bucket, in mode max: each is a term of one element of dweight.
type bagTerms struct {
	at      []uint32 // the element, counted from the first of the bucket
	values  []float32
	doubles []float64 // instead, in float64
}

// sumWinners writes dweight in mode max. The sums of a bucket stay in the cache while its terms are added, wherever they belong.
func (h *hostBags) sumWinners() {
	n := h.NumBags * h.EmbeddingDim
	if h.TotalIndices == 0 {
		n = 0
	}
	wide := h.DType == Float64
	size := int64(4)
	if wide {
		size = 8
	}
	b, t := &h.buckets, &h.terms
	b.cut(h.NumEmbeddings, n, h.EmbeddingDim, size)
	loops := &winnerLoops[0]
	if h.args[bagMaxIndices].DType == Int64 {
		loops = &winnerLoops[1]
	}
	total := b.count(func(_ *bagWorker, counts []uint32, first, end int64) {
		h.stretches(first, end, func(w *Tensor, _, _ int64) { loops.count(h, w, counts) })
	})
	t.at = sized(t.at, total)
	place := loops.place
	if wide {
		t.doubles, place = sized(t.doubles, total), loops.placeWide
	} else {
		t.values = sized(t.values, total)
	}
	b.place(func(_ *bagWorker, next []uint32, first, end int64) {
		h.stretches(first, end, func(w *Tensor, bag, column int64) { place(h, w, next, bag, column) })
	})
	b.each(h.NumEmbeddings, h.sumTerms)
}

// stretches visits the winners of each bag among the elements first..end-1 of dy, from a column on.
func (h *hostBags) stretches(first, end int64, visit func(winners *Tensor, bag, column int64)) {
	width := h.EmbeddingDim
	for i := first; i < end; {
		bag := i / width
		stop := min(end, (bag+1)*width)
		if h.countOf(bag) > 0 {
			w, column := rowOf(&h.args[bagMaxIndices], bag), i-bag*width
			w.Data += uintptr(column * w.Strides[0] * w.DType.Size())
			w.Shape[0] = stop - i
			visit(&w, bag, column)
		}
		i = stop
	}
}

// winnerLoops is the table of loops by the dtype of winners.
var winnerLoops = [2]struct {
	count            func(h *hostBags, w *Tensor, counts []uint32)
	place, placeWide func(h *hostBags, w *Tensor, next []uint32, bag, column int64)
}{
	{countWinners[int32], placeWinners[int32, float32], placeWinners[int32, float64]},
	{countWinners[int64], placeWinners[int64, float32], placeWinners[int64, float64]},
}

func countWinners[I int32 | int64](h *hostBags, w *Tensor, counts []uint32) {
	l := lineOf[I](w)
	for k := range w.Shape[0] {
		if row := l.at(k); row >= 0 && row != h.padding {
			counts[row>>h.buckets.shift]++
		}
	}
}

func placeWinners[I int32 | int64, A accumulator](h *hostBags, w *Tensor, next []uint32, bag, column int64) {
	var values []A
	switch v := any(&values).(type) {
	case *[]float32:
		*v = h.terms.values
	case *[]float64:
		*v = h.terms.doubles
	}
	l, width, mask := lineOf[I](w), h.EmbeddingDim, int64(1)<<h.buckets.shift-1
	dy := denseRow[A](&h.dy, bag, width)[column:][:w.Shape[0]]
	for k, value := range dy {
		if row := l.at(int64(k)); row >= 0 && row != h.padding {
			at := &next[row>>h.buckets.shift]
			h.terms.at[*at], values[*at] = uint32((row&mask)*width+column+int64(k)), value
			*at++
		}
	}
}

// sumTerms adds the terms of a bucket and writes its rows.
func (h *hostBags) sumTerms(w *bagWorker, first, end uint32, row, rows int64) {
	out := h.rowsOut(w, row, rows)
	if first == end {
		C.sw_bag_zeros(&out)
		return
	}
	w.sums = sized(w.sums, rows*h.EmbeddingDim)
	c := &w.sumTerms
	*c = C.sw_bag_terms{out: out, at: addressOf(h.terms.at[first:end]), sums: addressOf(w.sums), n: C.long(end - first)}
	if h.DType == Float64 {
		w.lost = sized(w.lost, rows*h.EmbeddingDim)
		c.values, c.lost = addressOf(h.terms.doubles[first:end]), addressOf(w.lost)
		C.sw_bag_terms_f64(c)
		return
	}
	c.values = addressOf(h.terms.values[first:end])
	C.sw_bag_terms_f32(c)
}
