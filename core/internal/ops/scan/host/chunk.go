package host

import (
	"slices"

	"github.com/sternway/sternway/core/internal/ops/scan/operand"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file runs scans whose rows are chunks of longer rows. The carry that enters a chunk is the
// prefix of its first split, and the suffix that follows it enters its last split on the right.

// without is args without some of the operands.
func without(args []tensor.Tensor, numbers ...int) []tensor.Tensor {
	rest := slices.Clone(args)
	for _, number := range numbers {
		rest[number] = tensor.Tensor{}
	}
	return rest
}

// runForwardChunk computes the outputs of a forward scan, carry_out included.
func (s *Scan) runForwardChunk(args []tensor.Tensor) {
	carryOut := &args[operand.ForwardCarryOut]
	rows := s.carryRows()
	if rows == 0 {
		return
	}
	states, boundaries := s.prefixes(&args[operand.ForwardCarryIn], rows)
	firsts := s.firstPositions(boundaries)
	vary := slices.ContainsFunc(firsts, func(first int64) bool { return first != firsts[0] })
	h := s.startForward(without(args, operand.ForwardCarryIn, operand.ForwardCarryOut), !vary)
	if h.findsIndices = carryOut.Given(); vary {
		h.firsts = firsts
	} else if firsts != nil {
		h.first = firsts[0]
	}
	switch {
	case h.n == 0:
	case h.lanes == h.rows:
		h.downsweep(states)
	default:
		h.scanSplits(states)
	}
	if !carryOut.Given() {
		return
	}
	writeCarry(carryOut, func(row int64, numbers []float64) {
		s.Recurrence.carries.write(states[row], numbers)
		if boundaries == nil {
			return
		}
		boundary := firsts[row]
		if !s.IsReversed {
			boundary += s.Length()
		}
		numbers[len(numbers)-1] = float64(boundary)
	})
}

// firstPositions are the positions in the whole row at which each chunk begins in memory.
func (s *Scan) firstPositions(boundaries []int64) []int64 {
	firsts := slices.Clone(boundaries)
	for row := range firsts {
		if s.IsReversed {
			firsts[row] -= s.Length()
		}
	}
	return firsts
}

// runBackwardChunk computes the outputs of a gradient, dcarry_in included.
func (s *Scan) runBackwardChunk(args []tensor.Tensor) {
	rows, form := s.carryRows(), s.Recurrence.carries
	if rows == 0 {
		return
	}
	maps := s.suffixMaps(&args[operand.DCarryOut], rows)
	if s.Length() > 0 {
		states, _ := s.prefixes(&args[operand.CarryIn], rows)
		prefixes := make([]state, rows)
		for row := range prefixes {
			prefixes[row] = form.toPrefix(states[row])
		}
		h := s.start(without(args, operand.CarryIn, operand.DCarryOut, operand.DCarryIn))
		h.isChunk = true
		h.scanChunk(prefixes, maps, args[operand.DCarryIn].Given())
	}
	if carryIn := &args[operand.DCarryIn]; carryIn.Given() {
		writeCarry(carryIn, func(row int64, numbers []float64) { form.writeMap(maps[row], numbers) })
	}
}

// scanChunk computes dx, and extends the maps of the chunks after this one by its own.
func (h *backwardRun) scanChunk(prefixes []state, maps []suffixMap, wantsMaps bool) {
	form, suffixes := h.carries, make([]float64, h.rows)
	for row := range maps {
		suffixes[row] = maps[row].suffix
	}
	aggregates, before := make([]state, h.lanes), prefixes
	if h.lanes == h.rows {
		if wantsMaps && form.usesAggregates {
			h.upsweep(aggregates, aggregates, nil)
		}
		carryIn := make([]state, h.rows)
		for row := range carryIn {
			carryIn[row] = h.toCarryIn(prefixes[row])
		}
		h.downsweep(carryIn, suffixes, nil)
	} else {
		aggregates, before = h.scan(prefixes, suffixes)
	}
	for i := h.lanes - 1; i >= 0; i-- {
		m := &maps[i%h.rows]
		m.coefficient = form.extend(before[i], aggregates[i], h.FirstWins, m.coefficient)
	}
	for row := range maps {
		maps[row].suffix = suffixes[row]
	}
}
