package host

// #cgo CFLAGS: -O2
// #include "scan.h"
import "C"

import (
	"slices"
	"sort"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file has packed sequences, and exclusive scans. An exclusive scan is the inclusive scan of
// all positions but the last, and its result lies one position later; so does dy of its gradient.

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
	*cpu.Bounds
	part       part
	length     int64 // of the row
	isReversed bool
}

// read sets `to` to the bounds from bound k on, in scan order.
func (q *sequences) read(to []int64, k int64) {
	if q.Wide != nil {
		readBounds(q, to, k, q.Wide)
	} else {
		readBounds(q, to, k, q.Narrow)
	}
}

func readBounds[T int32 | int64](q *sequences, to []int64, k int64, from []T) {
	switch at := (q.Count - k) * q.Stride; {
	case q.isReversed:
		for i := range to {
			to[i] = q.length - int64(from[at])
			at -= q.Stride
		}
	case q.Stride == 1:
		for i, bound := range from[k : k+int64(len(to))] {
			to[i] = int64(bound)
		}
	default:
		for i := range to {
			to[i] = int64(from[(k+int64(i))*q.Stride])
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
func (s *Scan) forSequences(args []tensor.Tensor, bounds *cpu.Bounds, out, later int, empty float64, run func(*Scan, []tensor.Tensor)) {
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
		bounds = &cpu.Bounds{Wide: []int64{0, s.Length()}, Stride: 1, Count: 1}
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
func (s *Scan) of(bounds *cpu.Bounds, part part) *Scan {
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
