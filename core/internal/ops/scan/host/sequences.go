package host

// #cgo CFLAGS: -O2
// #include "scan.h"
import "C"

import (
	"maps"
	"slices"

	"github.com/sternway/sternway/core/internal/tensor"
)

// This file scans packed sequences, and exclusively. Sequences of one length are rows of a run of
// their own. An exclusive scan is the inclusive scan of all positions but the last, and its result
// lies one position later; so does dy of its gradient.

// equalSequences are sequences of one length that are packed along the scanned dimension.
type equalSequences struct {
	starts []int64 // steps in scan order from the first position of the row in memory to the first of each: at most 0 if reversed
	firsts []int64 // the lowest position of each, in memory
}

// start is the first position of a sequence in scan order; that of a row is 0.
func (q *equalSequences) start(sequence int64) int64 {
	if q == nil {
		return 0
	}
	return q.starts[sequence]
}

// spacing is the distance of adjacent sequences from sequence first on, if it is the same for all
// `count` of them.
func (q *equalSequences) spacing(first, count int64) (distance int64, isRegular bool) {
	starts := q.starts[first : first+count]
	for k := 1; k < len(starts); k++ {
		if starts[k]-starts[k-1] != starts[1]-starts[0] {
			return 0, false
		}
	}
	if len(starts) > 1 {
		distance = starts[1] - starts[0]
	}
	return distance, true
}

// firstPositions are the lowest positions of the sequences: one if it is common, or one for each
// sequence of each of some rows.
func (q *equalSequences) firstPositions(rows int64) (first int64, firsts []int64) {
	if q == nil {
		return 0, nil
	}
	if len(q.firsts) == 1 {
		return q.firsts[0], nil
	}
	for _, first := range q.firsts {
		for range rows {
			firsts = append(firsts, first)
		}
	}
	return 0, firsts
}

// forEachLength calls run for the sequences of each length. Of an exclusive scan, `later` is the
// operand whose positions come one later: the output of the scan, or dy of its gradient. The
// position of the output that this leaves out, the first or the last of each sequence, becomes
// `empty`.
func (s *Scan) forEachLength(args []tensor.Tensor, bounds []int64, out, later int, empty float64, run func(*Scan, []tensor.Tensor)) {
	if bounds == nil && !s.IsExclusive {
		run(s, args)
		return
	}
	if bounds == nil {
		bounds = []int64{0, s.Length()}
	}
	byLength := s.byLength(bounds)
	lateArgs := slices.Clone(args)
	if s.IsExclusive {
		lateArgs[later].Data += uintptr(s.scanStep(&args[later]) * args[later].DType.Size())
	}
	for _, length := range slices.Sorted(maps.Keys(byLength)) {
		q := byLength[length]
		if !s.IsExclusive {
			run(s.part(q, length), args)
			continue
		}
		if length > 1 {
			run(s.part(q, length-1), lateArgs)
		}
		left := &equalSequences{starts: q.starts} // the positions that are left out
		if later != out {
			left.starts = slices.Clone(q.starts)
			for k := range left.starts {
				left.starts[k] += length - 1
			}
		}
		s.part(left, 1).fill(args, out, empty)
	}
}

// byLength are the sequences of some bounds that are not empty, by their length.
func (s *Scan) byLength(bounds []int64) map[int64]*equalSequences {
	all := map[int64]*equalSequences{}
	var q *equalSequences
	for k, last := 1, int64(0); k < len(bounds); k++ {
		first := bounds[k-1]
		length := bounds[k] - first
		if length == 0 {
			continue
		}
		if length != last { // many adjacent sequences may have one length
			if q = all[length]; q == nil {
				q = new(equalSequences)
				all[length] = q
			}
			last = length
		}
		start := first
		if s.IsReversed {
			start = -(first + length - 1)
		}
		q.firsts, q.starts = append(q.firsts, first), append(q.starts, start)
	}
	return all
}

// part is the scan of some sequences, or of their first positions.
func (s *Scan) part(q *equalSequences, length int64) *Scan {
	part := *s
	part.packed = q
	if part.Shape = slices.Clone(s.Shape); len(s.Shape) > 0 {
		part.Shape[s.Dim] = length
	}
	return &part
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
	h.inBatches(func(w *worker, first, count int64) {
		w.call.lanes, w.call.n = C.int64_t(count), C.int64_t(h.n)
		h.setOperand(&w.call.dx, number, first, count)
		C.sw_scan_fill(&w.call, C.double(value))
	})
}
