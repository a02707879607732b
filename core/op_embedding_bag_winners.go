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
		h.stretches(first, end, func(bag, column, n int64) { loops.count(h, counts, bag, column, n) })
	})
	t.at = sized(t.at, total)
	place := loops.place
	if wide {
		t.doubles, place = sized(t.doubles, total), loops.placeWide
	} else {
		t.values = sized(t.values, total)
	}
	b.place(func(_ *bagWorker, next []uint32, first, end int64) {
		h.stretches(first, end, func(bag, column, n int64) { place(h, next, bag, column, n) })
	})
	b.each(h.NumEmbeddings, h.sumTerms)
}

// stretches visits the elements first..end-1 of dy: of each bag that counts, some columns.
func (h *hostBags) stretches(first, end int64, visit func(bag, column, n int64)) {
	width := h.EmbeddingDim
	for i := first; i < end; {
		bag := i / width
		stop := min(end, (bag+1)*width)
		if h.countOf(bag) > 0 {
			visit(bag, i-bag*width, stop-i)
		}
		i = stop
	}
}

// winnerLoops is the table of loops by the dtype of winners.
var winnerLoops = [2]struct {
	count            func(h *hostBags, counts []uint32, bag, column, n int64)
	place, placeWide func(h *hostBags, next []uint32, bag, column, n int64)
}{
	{countWinners[int32], placeWinners[int32, float32], placeWinners[int32, float64]},
	{countWinners[int64], placeWinners[int64, float32], placeWinners[int64, float64]},
}

func countWinners[I int32 | int64](h *hostBags, counts []uint32, bag, column, n int64) {
	row := rowOf(&h.args[bagMaxIndices], bag)
	l, padding, shift := lineOf[I](&row), h.padding, h.buckets.shift
	in, start, step := l.in, l.start, l.step
	for k := column; k < column+n; k++ {
		if row := int64(in[start+k*step]); row >= 0 && row != padding {
			counts[row>>shift]++
		}
	}
}

func placeWinners[I int32 | int64, A accumulator](h *hostBags, next []uint32, bag, column, n int64) {
	row := rowOf(&h.args[bagMaxIndices], bag)
	l, padding, shift, width := lineOf[I](&row), h.padding, h.buckets.shift, h.EmbeddingDim
	in, start, step := l.in, l.start, l.step
	mask := int64(1)<<shift - 1
	var values []A
	switch v := any(&values).(type) {
	case *[]float32:
		*v = h.terms.values
	case *[]float64:
		*v = h.terms.doubles
	}
	at, dy := h.terms.at, denseRow[A](&h.dy, bag, width)
	for k := column; k < column+n; k++ {
		if row := int64(in[start+k*step]); row >= 0 && row != padding {
			place := next[row>>shift]
			at[place], values[place] = uint32((row&mask)*width+k), dy[k]
			next[row>>shift] = place + 1
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
