package embedding

// #cgo CFLAGS: -O2
// #include "bag.h"
import "C"

import (
	"slices"
	"sync"
	"unsafe"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file computes the gradients of embedding bags on the CPU.

// hostBags is one run on the CPU. Pools keep its memory for the next run, because page faults of
// fresh memory would take longer than the computation.
type hostBags[N number] struct {
	*BagProgram
	args    []tensor.Tensor
	index   func(k int64) int64
	first   []N       // first position of each bag, and the end of the last bag
	inverse []float64 // mode mean: 1 / counted positions, by bag
	dy      denseRows
	buckets bagBuckets[N]
	list    []occurrence[N] // modes sum and mean: occurrences sorted by bucket
	scales  []float64       // per_sample_weights in the order of list
	terms   bagTerms[N]     // mode max: terms sorted by bucket
}

// occurrence is a counted position: its row and its bag.
type occurrence[N number] struct{ row, bag N }

// bagWorker is the scratch memory of one goroutine; pools keep it between runs.
type bagWorker[N number] struct {
	rows, bags, begin           []N
	scales, scratch, sums, lost []float64
	wide                        []float64 // optimizer: square roots of a row, and a row of the table
	single, copied              []float32
	block64                     cpu.Block[float64]
	used                        []byte // mode max: rows with a term
	update                      C.sw_bag_update
	sumRows                     C.sw_bag_rows
	sumTerms                    C.sw_bag_terms
	dots                        C.sw_bag_dots
}

// bagPools recycle memory between runs, for 32-bit and for 64-bit counts.
var bagPools [2]struct{ runs, workers, unique sync.Pool }

// fromPool is a T from a pool, or a new one.
func fromPool[T any](pool *sync.Pool) *T {
	if known := pool.Get(); known != nil {
		return known.(*T)
	}
	return new(T)
}

// grow is a slice of n elements with unspecified values that reuses the memory of s if it suffices.
func grow[E any](s []E, n int64) []E { return slices.Grow(s[:0], int(n))[:n] }

// addressOf is the address of the first element.
func addressOf[E any](s []E) C.uintptr_t {
	return C.uintptr_t(uintptr(unsafe.Pointer(unsafe.SliceData(s))))
}

// Host implements ops.Program.
func (p *BagProgram) Host(args []tensor.Tensor) {
	args = p.operands.of(args)
	if p.learns() {
		advance(optionsOf(args))
	}
	if p.many != nil {
		p.hostTables(args)
	} else {
		p.runHost(args)
	}
}

// optionsOf are the numbers of an optimizer.
func optionsOf(args []tensor.Tensor) []float64 {
	return cpu.Elements[float64](&args[bagOptions], 0, int64(len(Options)), 1)
}

// runHost runs one table. args are in the order of the operands of embedding bags.
func (p *BagProgram) runHost(args []tensor.Tensor) {
	if p.Wide {
		runBags[uint64](p, args)
	} else {
		runBags[uint32](p, args)
	}
}

func runBags[N number](p *BagProgram, args []tensor.Tensor) {
	pool := &bagPools[bitsOf[N]()/64].runs
	h := fromPool[hostBags[N]](pool)
	h.BagProgram, h.args, h.index = p, args, integersOf(&args[bagIndices])
	if !h.bagless() {
		h.readOffsets()
	}
	weight := args[bagDweight].Given() && !args[bagDweight].Empty()
	if h.TotalIndices > 0 {
		h.dy.read(&args[bagDy], weight && !h.readsNarrow())
	}
	if args[BagDsample].Given() {
		h.sampleWeights()
	}
	switch {
	case weight && h.Mode == "max":
		h.sumArgmax()
	case weight:
		h.sumOccurrences()
	}
	h.BagProgram, h.args, h.index = nil, nil, nil
	pool.Put(h)
}

// readsNarrow reports whether the loops convert rows of dy in at most 16 bits. Without bags each
// row is used once, so that a converted copy would cost more than it saves.
func (h *hostBags[N]) readsNarrow() bool {
	dy := &h.args[bagDy]
	return h.bagless() && dy.DType.IsNarrow() && (dy.Strides[1] == 1 || dy.Shape[1] == 1)
}

// needsWide reports whether rows, bags, positions, or the elements of a bucket in mode max need
// 64-bit counts.
func (d EmbeddingBagBackward) needsWide() bool {
	most := max(d.NumEmbeddings, d.NumBags, d.TotalIndices)
	if d.Mode == "max" {
		most = max(most, d.NumBags*d.EmbeddingDim, 2*num.CeilDiv(d.NumEmbeddings, maxBagBuckets)*d.EmbeddingDim)
	}
	return most >= BagWide
}

// Tasks implements ops.Program: the buckets of dweight if every index counts.
func (p *BagProgram) Tasks([]tensor.Tensor) int64 {
	var b bagBuckets[uint64]
	b.divideFor(p, p.TotalIndices)
	return b.buckets
}

// divideFor chooses buckets and ranges for the sums of n counted positions. In mode max each
// element of dy is an occurrence.
func (b *bagBuckets[N]) divideFor(p *BagProgram, n int64) {
	size := p.DType.Size()
	if p.Mode == "max" {
		n, size = min(n, 1)*p.NumBags*p.EmbeddingDim, p.DType.Accumulator().Size()
	}
	b.divide(p.NumEmbeddings, n, p.EmbeddingDim, size)
}

// sumOccurrences writes dweight in the modes sum and mean.
func (h *hostBags[N]) sumOccurrences() {
	if h.Mode == "mean" {
		h.inverse = grow(h.inverse, h.NumBags)
		parallelForWorkers(h.NumBags, 4096, 1<<14, func(_ *bagWorker[N], first, end int64) {
			for b := first; b < end; b++ {
				h.inverse[b] = 1 / float64(h.countOf(b))
			}
		})
	}
	weighted := h.args[BagSampleWeights].Given()
	shift := &h.buckets.shift
	h.buckets.divideFor(h.BagProgram, h.counted())
	total := h.buckets.count(func(w *bagWorker[N], counts []N, first, end int64) {
		w.rows = h.readRows(grow(w.rows, end-first), first)
		for _, row := range w.rows {
			if row != noRow[N]() {
				counts[row>>*shift]++
			}
		}
	})
	h.list = grow(h.list, total)
	if weighted {
		h.scales = grow(h.scales, total)
	}
	h.buckets.place(func(w *bagWorker[N], next []N, first, end int64) {
		w.rows = h.readRows(grow(w.rows, end-first), first)
		w.bags = h.readBags(grow(w.bags, end-first), first)
		if weighted {
			w.scales = h.readScales(w, grow(w.scales, end-first), first)
		}
		for k, row := range w.rows {
			if row == noRow[N]() {
				continue
			}
			at := &next[row>>*shift]
			h.list[*at] = occurrence[N]{row, w.bags[k]}
			if weighted {
				h.scales[*at] = w.scales[k]
			}
			*at++
		}
	})
	h.buckets.each(h.NumEmbeddings, func(w *bagWorker[N], first, end N, row, rows int64) {
		h.sumRows(w, first, end, row, rows)
	})
}

// sumRows sorts the occurrences first..end-1 of one bucket by row (counting sort) and writes the
// rows.
func (h *hostBags[N]) sumRows(w *bagWorker[N], first, end N, row, rows int64) {
	out := h.rowsOut(w, row, rows)
	if first == end {
		C.sw_bag_zeros(&out)
		return
	}
	own := h.list[first:end]
	w.begin, w.bags, w.scratch = grow(w.begin, rows+2), grow(w.bags, int64(len(own))), grow(w.scratch, h.EmbeddingDim)
	clear(w.begin)
	for _, o := range own {
		w.begin[int64(o.row)-row+2]++
	}
	for r := range rows {
		w.begin[r+2] += w.begin[r+1]
	}
	c := &w.sumRows
	*c = C.sw_bag_rows{out: out, dy: C.uintptr_t(h.dy.data), dy_bag: C.long(h.dy.step)}
	if h.dy.dtype.Size() == 2 {
		c.dy_narrow = C.long(h.dy.dtype.Row())
	}
	weighted := h.args[BagSampleWeights].Given()
	switch {
	case weighted:
		w.scales = grow(w.scales, int64(len(own)))
		c.scales = addressOf(w.scales)
	case h.Mode == "mean":
		c.scales, c.of_bags = addressOf(h.inverse), 1
	}
	if h.ScaleGradByFreq {
		c.by_frequency = 1
	}
	for k, o := range own {
		at := &w.begin[int64(o.row)-row+1]
		w.bags[*at] = o.bag
		if weighted {
			w.scales[*at] = h.scales[first:end][k]
		}
		*at++
	}
	if h.learns() {
		w.rows = grow(w.rows, rows)
		c.used = addressOf(w.rows)
	}
	c.bags, c.begin, c.scratch = addressOf(w.bags), addressOf(w.begin), addressOf(w.scratch)
	switch double := h.DType == tensor.Float64; {
	case h.Wide && double:
		C.sw_bag_rows_f64_wide(c)
	case h.Wide:
		C.sw_bag_rows_f32_wide(c)
	case double:
		C.sw_bag_rows_f64(c)
	default:
		C.sw_bag_rows_f32(c)
	}
}

// rowsOut describes adjacent rows of dweight to the C loops.
func (h *hostBags[N]) rowsOut(w *bagWorker[N], row, rows int64) C.sw_bag_out {
	t := &h.args[bagDweight]
	w.single, w.wide = grow(w.single, 2*h.EmbeddingDim), grow(w.wide, 2*h.EmbeddingDim)
	out := C.sw_bag_out{
		data: C.uintptr_t(t.Data + uintptr(row*t.Strides[0]*t.DType.Size())), single: addressOf(w.single),
		row: C.long(t.Strides[0]), column: C.long(t.Strides[1]), rows: C.long(rows), columns: C.long(h.EmbeddingDim), narrow: C.long(t.DType.Row()),
	}
	if h.EmbeddingDim == 1 {
		out.column = 1
	}
	if h.learns() {
		h.setUpdate(w, row)
		out.update = C.uintptr_t(uintptr(unsafe.Pointer(&w.update)))
	}
	return out
}
