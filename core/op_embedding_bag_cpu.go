package core

// #include "op_embedding_bag.h"
import "C"

import (
	"math"
	"math/bits"
	"slices"
	"sync"
	"unsafe"
)

// On the CPU the occurrences are first cut into buckets of adjacent rows, by parts that work side by side; then each bucket is sorted by
// row and its rows are summed and written. Both steps keep the order of positions, so a sum does not depend on parts or buckets.
const (
	bagBucketBytes = 1 << 17 // of dweight
	bagBuckets     = 4096    // at most
	bagPart        = 1 << 16 // occurrences
	bagParts       = 64      // at most
	noRow          = math.MaxUint32
)

// occurrence is a row and where its summand comes from: a bag; a position where these have weights; an element of dy in mode max.
type occurrence struct{ row, tag uint32 }

// hostBags is one run on the CPU.
type hostBags struct {
	*bagProgram
	args   []Tensor
	first  []uint32  // where each bag begins, and the last one ends
	rows   []uint32  // of each position, noRow where it does not count
	bagOf  []uint32  // of each position, where samples have weights
	scales []float64 // of each position where samples have weights, of each bag in mode mean
	dy     denseRows
}

func (p *bagProgram) host(args []Tensor) {
	h := hostBags{bagProgram: p, args: args}
	h.readOffsets()
	h.readIndices()
	if p.TotalIndices > 0 {
		h.dy = makeDense(&args[bagDy])
	}
	if args[bagDsample].present() {
		h.sampleWeights()
	}
	if args[bagDweight].present() && !args[bagDweight].empty() {
		h.weight()
	}
}

// spread cuts n things into tasks of a size and does them side by side; a goroutine is worth `share` things.
func spread(n, size, share int64, body func(first, end int64)) {
	parallel(ceil(n, size), max(1, share/size), func() (struct{}, func()) { return struct{}{}, func() {} },
		func(_ struct{}, task int64) { body(task*size, min(n, (task+1)*size)) })
}

func (h *hostBags) readOffsets() {
	h.first = make([]uint32, h.NumBags+1)
	if offset := integers(&h.args[bagOffsets]); offset != nil {
		for b := range h.args[bagOffsets].Shape[0] {
			h.first[b] = uint32(offset(b))
		}
	}
	if !h.IncludeLastOffset && h.NumBags > 0 {
		h.first[h.NumBags] = uint32(h.TotalIndices)
	}
}

// readIndices finds what each position counts for.
func (h *hostBags) readIndices() {
	h.rows = make([]uint32, h.TotalIndices)
	counted := int64(h.first[h.NumBags])
	weighted := h.args[bagSampleWeights].present()
	if weighted {
		h.scales = float64s(&h.args[bagSampleWeights])
	}
	if weighted || h.args[bagDsample].present() {
		h.bagOf = make([]uint32, h.TotalIndices)
	}
	index := integers(&h.args[bagIndices])
	spread(h.TotalIndices, bagPart, 1<<15, func(first, end int64) {
		for i := first; i < end; i++ {
			row := index(i)
			h.rows[i] = uint32(row)
			if i >= counted || row == h.padding {
				h.rows[i] = noRow
			}
		}
	})
	spread(h.NumBags, 4096, 1<<14, func(first, end int64) {
		for b := first; b < end && h.bagOf != nil; b++ {
			for i := h.first[b]; i < h.first[b+1]; i++ {
				h.bagOf[i] = uint32(b)
			}
		}
	})
	if h.Mode == "mean" {
		h.scales = make([]float64, h.NumBags)
		spread(h.NumBags, 4096, 1<<14, func(first, end int64) {
			for b := first; b < end; b++ {
				h.scales[b] = 1 / float64(h.countOf(b))
			}
		})
	}
}

// countOf is the number of positions of a bag that count.
func (h *hostBags) countOf(bag int64) (n int64) {
	for _, row := range h.rows[h.first[bag]:h.first[bag+1]] {
		if row != noRow {
			n++
		}
	}
	return n
}

// walk visits the occurrences first..end-1: positions, or in mode max the elements of dy.
func (h *hostBags) walk(first, end int64, visit func(row, tag uint32)) {
	if h.Mode == "max" {
		h.walkWinners(first, end, visit)
		return
	}
	bag, _ := slices.BinarySearch(h.first[1:], uint32(first)+1)
	weighted := h.args[bagSampleWeights].present()
	for i := first; i < end; i++ {
		row := h.rows[i]
		if row == noRow {
			continue
		}
		for uint32(i) >= h.first[bag+1] {
			bag++
		}
		if weighted {
			visit(row, uint32(i))
		} else {
			visit(row, uint32(bag))
		}
	}
}

func (h *hostBags) walkWinners(first, end int64, visit func(row, tag uint32)) {
	w, width := &h.args[bagMaxIndices], h.EmbeddingDim
	for i := first; i < end; {
		bag := i / width
		stop := min(end, (bag+1)*width)
		if h.countOf(bag) > 0 {
			row := *w // its winners of this bag, from the column of i on
			row.Data += uintptr((bag*w.Strides[0] + (i-bag*width)*w.Strides[1]) * w.DType.Size())
			if w.DType == Int32 {
				visitWinners[int32](&row, stop-i, h.padding, uint32(i), visit)
			} else {
				visitWinners[int64](&row, stop-i, h.padding, uint32(i), visit)
			}
		}
		i = stop
	}
}

// visitWinners visits the rows among n winners, of which the first has a tag.
func visitWinners[I int32 | int64](w *Tensor, n, padding int64, tag uint32, visit func(row, tag uint32)) {
	step := w.Strides[1]
	if step < 0 {
		for k := range n {
			if row := int64(elements[I](w, k*step, 1, 1)[0]); row >= 0 && row != padding {
				visit(uint32(row), tag+uint32(k))
			}
		}
		return
	}
	in := elements[I](w, 0, n, step)
	for k := range n {
		if row := int64(in[k*step]); row >= 0 && row != padding {
			visit(uint32(row), tag+uint32(k))
		}
	}
}

// weight writes dweight.
func (h *hostBags) weight() {
	n := h.TotalIndices
	if h.Mode == "max" {
		n = h.NumBags * h.EmbeddingDim
	}
	size := max(1, h.EmbeddingDim*h.DType.Size())
	wanted := max(bagBucketBytes/size, ceil(h.NumEmbeddings, bagBuckets), 1)
	if n*h.EmbeddingDim > 1<<16 { // enough work for several processors
		wanted = min(wanted, max(ceil(h.NumEmbeddings, 64), ceil(h.NumEmbeddings, bagBuckets)))
	}
	shift := bits.Len64(uint64(wanted) - 1)
	buckets := ceil(h.NumEmbeddings, 1<<shift)
	partSize := max(bagPart, ceil(n, bagParts))
	parts := ceil(n, partSize)
	begin := make([]uint32, parts*buckets+1) // of each bucket, part by part
	spread(n, partSize, 1<<15, func(first, end int64) {
		part := first / partSize
		h.walk(first, end, func(row, _ uint32) { begin[int64(row>>shift)*parts+part]++ })
	})
	sum := uint32(0)
	for i, count := range begin {
		begin[i] = sum
		sum += count
	}
	list := make([]occurrence, sum)
	next := slices.Clone(begin)
	spread(n, partSize, 1<<15, func(first, end int64) {
		part := first / partSize
		h.walk(first, end, func(row, tag uint32) {
			at := &next[int64(row>>shift)*parts+part]
			list[*at] = occurrence{row, tag}
			*at++
		})
	})
	cost := (h.NumEmbeddings + n) * h.EmbeddingDim / max(buckets, 1) // of a bucket
	parallel(buckets, max(1, (1<<17)/max(cost, 1)), func() (*bagWorker, func()) {
		w := bagWorkers.Get().(*bagWorker)
		return w, func() { bagWorkers.Put(w) }
	}, func(w *bagWorker, bucket int64) {
		own := []occurrence{}
		if parts > 0 {
			own = list[begin[bucket*parts]:begin[(bucket+1)*parts]]
		}
		row := bucket << shift
		h.sumRows(w, own, row, min(1<<shift, h.NumEmbeddings-row))
	})
}

// bagWorker is the scratch of one goroutine, kept between runs.
type bagWorker struct {
	begin, bags, columns []uint32
	scales, room         []float64
	rows                 C.sw_bag_rows
}

var bagWorkers = sync.Pool{New: func() any { return new(bagWorker) }}

// sized is a slice of n elements of nothing in particular, in the memory of s where that is enough.
func sized[E any](s []E, n int) []E { return slices.Grow(s[:0], n)[:n] }

// sumRows sorts the occurrences of some adjacent rows by row and writes these rows.
func (h *hostBags) sumRows(w *bagWorker, own []occurrence, row, rows int64) {
	w.begin, w.bags, w.room = sized(w.begin, int(rows)+2), sized(w.bags, len(own)), sized(w.room, 2*int(h.EmbeddingDim))
	clear(w.begin)
	for _, o := range own {
		w.begin[int64(o.row)-row+2]++
	}
	for r := range rows {
		w.begin[r+2] += w.begin[r+1]
	}
	if h.scales != nil {
		w.scales = sized(w.scales, len(own))
	}
	if h.Mode == "max" {
		w.columns = sized(w.columns, len(own))
	}
	for _, o := range own {
		at := &w.begin[int64(o.row)-row+1]
		bag := o.tag
		switch {
		case h.Mode == "max":
			bag = o.tag / uint32(h.EmbeddingDim)
			w.columns[*at] = o.tag - bag*uint32(h.EmbeddingDim)
		case h.Mode == "mean":
			w.scales[*at] = h.scales[o.tag]
		case h.scales != nil:
			w.scales[*at] = h.scales[o.tag]
			bag = h.bagOf[o.tag]
		}
		w.bags[*at] = bag
		*at++
	}
	h.store(w, row, rows)
}

func addressOf[E any](s []E) C.uintptr_t {
	return C.uintptr_t(uintptr(unsafe.Pointer(unsafe.SliceData(s))))
}

// store writes adjacent rows whose entries lie row by row in the worker.
func (h *hostBags) store(w *bagWorker, row, rows int64) {
	out := &h.args[bagDweight]
	c := &w.rows
	*c = C.sw_bag_rows{
		dy: C.uintptr_t(h.dy.data), dy_bag: C.long(h.dy.step), bags: addressOf(w.bags), begin: addressOf(w.begin), room: addressOf(w.room),
		out:     C.uintptr_t(out.Data + uintptr(row*out.Strides[0]*out.DType.Size())),
		out_row: C.long(out.Strides[0]), out_column: C.long(out.Strides[1]), rows: C.long(rows), columns: C.long(h.EmbeddingDim),
		narrow: C.long(out.DType.row()),
	}
	if h.EmbeddingDim == 1 {
		c.out_column = 1
	}
	if h.scales != nil {
		c.scales = addressOf(w.scales)
	}
	if h.Mode == "max" {
		c.winners = addressOf(w.columns)
	}
	if h.ScaleGradByFreq {
		c.by_frequency = 1
	}
	if h.DType == Float64 {
		C.sw_bag_rows_f64(c)
	} else {
		C.sw_bag_rows_f32(c)
	}
}
