package host

// #cgo CFLAGS: -O2
// #include "scan.h"
import "C"

import (
	"math"
	"slices"
	"sort"
	"sync/atomic"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/sternway/sternway/core/internal/threads"
)

// This file has packed sequences, and exclusive scans. An exclusive scan is the inclusive scan of
// all positions but the last, and its result lies one position later; so does dy of its gradient.

// Bounds are the bounds of the sequences that are packed along a dimension, in host memory:
// sequence k has the positions At(k) to At(k+1) - 1.
type Bounds struct {
	narrow []int32
	wide   []int64 // nil: the bounds are int32
	stride int64
	Count  int64 // number of sequences
}

// BoundsOf reads an operand of at least one int32 or int64; nil if it is left out.
func BoundsOf(t *tensor.Tensor) *Bounds {
	if !t.Given() {
		return nil
	}
	b := &Bounds{stride: t.Strides[0], Count: t.Shape[0] - 1}
	switch {
	case b.stride < 1: // reversed, or one number
		b.wide = make([]int64, t.Shape[0])
		for k := range b.wide {
			one := *t
			one.Data += uintptr(int64(k) * b.stride * t.DType.Size())
			one.Strides[0] = 1
			b.wide[k] = (BoundsOf(&one)).At(0)
		}
		b.stride = 1
	case t.DType == tensor.Int32:
		b.narrow = cpu.Elements[int32](t, 0, t.Shape[0], b.stride)
	default:
		b.wide = cpu.Elements[int64](t, 0, t.Shape[0], b.stride)
	}
	return b
}

// At is bound k.
func (b *Bounds) At(k int64) int64 {
	if b.wide != nil {
		return b.wide[k*b.stride]
	}
	return int64(b.narrow[k*b.stride])
}

// FirstWrong is the first bound that is not 0, is less than the bound before it, or exceeds the
// length of a row; the last bound if that is not the length. -1: all are right. If the row is cut
// out of a longer one, the first bound may be less than 0, and others may exceed the length.
func (b *Bounds) FirstWrong(length int64, isCut bool) int64 {
	least, most := int64(0), length
	if isCut {
		least, most = math.MinInt64, math.MaxInt64
	}
	var first atomic.Int64
	first.Store(math.MaxInt64)
	start := func() (*Bounds, func()) { return b, func() {} }
	threads.Run(nil, num.CeilDiv(b.Count+1, cpu.Grain), 1, start, func(_ *Bounds, task int64) {
		k, end := task*cpu.Grain, min((task+1)*cpu.Grain, b.Count+1)
		for wrong := b.firstWrong(k, end, least, most); wrong < end; {
			if before := first.Load(); wrong >= before || first.CompareAndSwap(before, wrong) {
				break
			}
		}
	})
	switch {
	case first.Load() < math.MaxInt64:
		return first.Load()
	case b.At(b.Count) < length:
		return b.Count
	}
	return -1
}

// firstWrong is the first of the bounds k to end-1 that is less than the bound before it, or not
// between two numbers, or is bound 0 and exceeds 0; `end` if there is none.
func (b *Bounds) firstWrong(k, end, least, most int64) int64 {
	if k > 0 {
		least = b.At(k - 1)
	} else if b.At(0) > 0 {
		return 0
	}
	for ; k < end; k++ {
		bound := b.At(k)
		if bound < least || bound > most {
			break
		}
		least = bound
	}
	return k
}

// part is the part of each sequence that a run is about, in scan order.
type part int

const (
	all part = iota
	allButLast
	onlyFirst
	onlyLast
)

// sequences are a part of each sequence of a row.
type sequences struct {
	*Bounds
	part       part
	length     int64 // of the row
	isReversed bool
}

// read sets `to` to the bounds from bound k on, in scan order.
func (q *sequences) read(to []int64, k int64) {
	if q.wide != nil {
		readBounds(q, to, k, q.wide)
	} else {
		readBounds(q, to, k, q.narrow)
	}
}

func readBounds[T int32 | int64](q *sequences, to []int64, k int64, from []T) {
	switch at := (q.Count - k) * q.stride; {
	case q.isReversed:
		for i := range to {
			to[i] = q.length - int64(from[at])
			at -= q.stride
		}
	case q.stride == 1:
		for i, bound := range from[k : k+int64(len(to))] {
			to[i] = int64(bound)
		}
	default:
		for i := range to {
			to[i] = int64(from[(k+int64(i))*q.stride])
		}
	}
}

// partOf are the positions, first to end-1, of a sequence that belong to the part. They are in the
// row even if the caller has changed the bounds since the check.
func (q *sequences) partOf(first, end int64) (int64, int64) {
	first, end = max(first, 0), min(end, q.length)
	switch {
	case q.part == all || first >= end:
	case q.part == allButLast:
		end--
	case q.part == onlyFirst:
		end = first + 1
	default:
		first = end - 1
	}
	return first, end
}

// positions are the positions of sequence k that belong to the part, in scan order: first to end-1.
func (q *sequences) positions(k int64) (first, end int64) {
	var bounds [2]int64
	q.read(bounds[:], k)
	return q.partOf(bounds[0], bounds[1])
}

// search is the first sequence, from sequence k on, that ends after a position. It doubles its
// steps until it is past the sequence (galloping search).
func (q *sequences) search(k, position int64) int64 {
	endsAfter := func(k int64) bool {
		_, end := q.positions(k)
		return end > position
	}
	step := int64(1)
	for k+step < q.Count && !endsAfter(k+step-1) {
		k, step = k+step, 2*step
	}
	return k + int64(sort.Search(int(min(step, q.Count-k)), func(i int) bool { return endsAfter(k + int64(i)) }))
}

// forSequences calls run for the sequences of each row. Of an exclusive scan, `later` is the
// operand whose positions come one later: the output of the scan, or dy of its gradient. The
// position of the output that this leaves out, the first or the last of each sequence, becomes
// `empty`.
func (s *Scan) forSequences(args []tensor.Tensor, bounds *Bounds, out, later int, empty float64, run func(*Scan, []tensor.Tensor)) {
	switch {
	case !s.IsExclusive && bounds == nil:
		run(s, args)
		return
	case !s.IsExclusive:
		run(s.of(bounds, all), args)
		return
	}
	lateArgs, rest := slices.Clone(args), s.of(bounds, allButLast)
	lateArgs[later].Data += uintptr(s.scanStep(&args[later]) * args[later].DType.Size())
	if bounds == nil {
		bounds = &Bounds{wide: []int64{0, s.Length()}, stride: 1, Count: 1}
		rest.Shape = slices.Clone(s.Shape)
		for i := range lateArgs {
			if s.IsReversed && args[i].Given() { // the last position is that of the lowest address
				lateArgs[i].Data -= uintptr(s.scanStep(&args[i]) * args[i].DType.Size())
			}
		}
		if len(s.Shape) > 0 {
			rest.Shape[s.Dim] = max(0, s.Length()-1)
		}
	}
	if len(s.Shape) > 0 { // else there is one position
		run(rest, lateArgs)
	}
	left := onlyFirst
	if later != out {
		left = onlyLast
	}
	s.of(bounds, left).fill(args, out, empty)
}

// of is the scan of a part of each sequence; of whole rows without bounds.
func (s *Scan) of(bounds *Bounds, part part) *Scan {
	scan := *s
	if scan.parent == nil {
		scan.parent = s
	}
	if bounds != nil {
		scan.packed = &sequences{bounds, part, s.Length(), s.IsReversed}
	}
	return &scan
}

// scanStep is the distance of positions of an operand in scan order [elements].
func (s *Scan) scanStep(t *tensor.Tensor) int64 {
	switch {
	case len(s.Shape) == 0:
		return 0
	case s.IsReversed:
		return -t.ElementStrides()[s.Dim]
	}
	return t.ElementStrides()[s.Dim]
}

// fill stores a value in all elements of an operand.
func (s *Scan) fill(args []tensor.Tensor, number int, value float64) {
	space := s.space(args)
	h := s.divide(args, &space, 1, minSplitLength)
	if h.lanes == 0 {
		return
	}
	h.inBatches(false, func(w *worker, first, count int64) {
		w.call.lanes, w.call.n = C.int64_t(count), C.int64_t(h.lengthOf(w, first))
		h.setOperand(w, &w.call.dx, number, first, count)
		C.sw_scan_fill(&w.call, C.double(value))
	})
}
