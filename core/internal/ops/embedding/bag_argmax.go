package embedding

// #cgo CFLAGS: -O2
// #include "bag.h"
import "C"

import (
	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/tensor"
)

// Mode max on the CPU: each element of dy is added to one element of dweight, in the row of its
// argmax.

// bagTerm is an element of dy and the element of dweight that it is added to, counted from the
// start of its bucket.
type bagTerm[N number, A cpu.Accumulator] struct {
	at    N
	value A
}

// bagTerms are the terms in the order of buckets; the accumulator of the run decides which slice is
// used.
type bagTerms[N number] struct {
	singles []bagTerm[N, float32]
	doubles []bagTerm[N, float64]
}

// sumArgmax writes dweight in mode max. Terms are sorted by bucket, and the sums of a bucket fit in
// the cache.
func (h *hostBags[N]) sumArgmax() {
	b := &h.buckets
	b.divideFor(h.BagProgram, h.counted())
	total := b.count(func(w *bagWorker[N], counts []N, first, end int64) {
		w.rows = h.readArgmax(grow(w.rows, end-first), first)
		for _, row := range w.rows {
			if row != noRow[N]() {
				counts[row>>(b.shift&(bitsOf[N]()-1))]++
			}
		}
	})
	if h.DType == tensor.Float64 {
		h.terms.doubles = grow(h.terms.doubles, total)
		placeTerms(h, h.terms.doubles)
	} else {
		h.terms.singles = grow(h.terms.singles, total)
		placeTerms(h, h.terms.singles)
	}
	b.each(h.NumEmbeddings, h.sumTerms)
}

// visitColumns visits n elements of dy from index first on as ranges of columns within bags. at
// counts elements from first on.
func (h *hostBags[N]) visitColumns(first, n int64, visit func(at, bag, column, columns int64)) {
	for at := int64(0); at < n; {
		bag := (first + at) / h.EmbeddingDim
		column := first + at - bag*h.EmbeddingDim
		columns := min(h.EmbeddingDim-column, n-at)
		visit(at, bag, column, columns)
		at += columns
	}
}

// readArgmax sets rows to the argmax of the elements of dy from index first on; noRow if an element
// does not count.
func (h *hostBags[N]) readArgmax(rows []N, first int64) []N {
	all, one := asVector(&h.args[BagMaxIndices])
	if one {
		readIntegers(rows, &all, first)
	}
	h.visitColumns(first, int64(len(rows)), func(at, bag, column, columns int64) {
		some := rows[at : at+columns]
		switch {
		case h.countOf(bag) == 0:
			for k := range some {
				some[k] = noRow[N]()
			}
		case !one:
			argmax := rowOf(&h.args[BagMaxIndices], bag)
			readIntegers(some, &argmax, column)
		}
	})
	return h.withoutPadding(rows)
}

// placeTerms sorts the elements of dy by bucket. The order within a bucket stays the order of
// elements.
func placeTerms[N number, A cpu.Accumulator](h *hostBags[N], terms []bagTerm[N, A]) {
	shift, width := h.buckets.shift, N(h.EmbeddingDim)
	mask := N(1)<<shift - 1
	h.buckets.place(func(w *bagWorker[N], next []N, first, end int64) {
		w.rows = h.readArgmax(grow(w.rows, end-first), first)
		h.visitColumns(first, end-first, func(at, bag, column, columns int64) {
			rows, dy := w.rows[at:at+columns], denseRow[A](&h.dy, bag, column, columns)
			for k, row := range rows {
				if row != noRow[N]() {
					place := &next[row>>(shift&(bitsOf[N]()-1))]
					terms[*place] = bagTerm[N, A]{(row&mask)*width + N(column) + N(k), dy[k]}
					*place++
				}
			}
		})
	})
}

// sumTerms adds the terms first..end-1 of a bucket and writes its rows.
func (h *hostBags[N]) sumTerms(w *bagWorker[N], first, end N, row, rows int64) {
	out := h.rowsOut(w, row, rows)
	if first == end {
		C.sw_bag_zeros(&out)
		return
	}
	w.sums = grow(w.sums, rows*h.EmbeddingDim)
	c := &w.sumTerms
	*c = C.sw_bag_terms{out: out, sums: addressOf(w.sums), n: C.long(end - first)}
	if h.learns() {
		w.used = grow(w.used, rows)
		c.used = addressOf(w.used)
	}
	if h.DType == tensor.Float64 {
		w.lost = grow(w.lost, rows*h.EmbeddingDim)
		c.terms, c.lost = addressOf(h.terms.doubles[first:end]), addressOf(w.lost)
		if h.Wide {
			C.sw_bag_terms_f64_wide(c)
		} else {
			C.sw_bag_terms_f64(c)
		}
		return
	}
	c.terms = addressOf(h.terms.singles[first:end])
	if h.Wide {
		C.sw_bag_terms_f32_wide(c)
	} else {
		C.sw_bag_terms_f32(c)
	}
}
