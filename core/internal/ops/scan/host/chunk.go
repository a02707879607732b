package host

import (
	"slices"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/num"
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
func (s *Scan) runForwardChunk(args []tensor.Tensor, bounds *cpu.Bounds) {
	carryOut := &args[operand.ForwardCarryOut]
	rows := s.carryRows()
	if rows == 0 {
		return
	}
	states, boundaries := s.prefixes(&args[operand.ForwardCarryIn], rows)
	args = without(args, operand.ForwardCarryIn, operand.ForwardSeqlens, operand.ForwardCarryOut)
	intervals := s.intervals(bounds, vary(boundaries)) // packed runs have one index of the first position
	for i, interval := range intervals {
		part, own := s.slice(args, interval.first, interval.end)
		starts := slices.Clone(boundaries)
		for row := range starts {
			starts[row] += interval.first
			if s.IsReversed {
				starts[row] -= 2 * interval.first
			}
		}
		isLast := i == len(intervals)-1
		if interval.begins {
			states = slices.Repeat([]forwardState{s.Recurrence.forwardInitial}, int(rows))
		}
		if isLast || args[operand.ForwardY].Given() {
			part.of(interval.bounds, all).forwardInterval(own, states, part.firstPositions(starts), isLast && carryOut.Given())
		}
	}
	if !carryOut.Given() {
		return
	}
	firsts := s.firstPositions(boundaries)
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

// forwardInterval scans rows from their prefixes, which become those after the rows, or packed
// sequences. firsts are the positions in the whole row at which each row begins in memory.
func (s *Scan) forwardInterval(args []tensor.Tensor, states []forwardState, firsts []int64, findsIndices bool) {
	h := s.startForward(args, !vary(firsts))
	if h.findsIndices = findsIndices; vary(firsts) {
		h.firsts = firsts
	} else if firsts != nil {
		h.first = firsts[0]
	}
	switch {
	case h.n == 0:
	case h.lanes == h.rows && s.packed == nil:
		h.downsweep(states)
	case h.lanes == h.rows:
		h.downsweep(nil)
	default:
		h.scanSplits(states)
	}
}

// vary reports whether some numbers differ.
func vary(numbers []int64) bool {
	return slices.ContainsFunc(numbers, func(x int64) bool { return x != numbers[0] })
}

// interval are positions of a chunk in scan order: first to end-1. They belong to one sequence or,
// with bounds, are whole sequences.
type interval struct {
	first, end int64
	begins     bool        // a sequence begins at the first position
	bounds     *cpu.Bounds // counted from the first position in memory
}

// intervals are the sequence that a chunk continues, whole sequences, and the one that the next
// chunk continues, which is empty if it begins there. Without bounds, a chunk is in one sequence.
// areApart: each sequence is an interval of its own.
func (s *Scan) intervals(bounds *cpu.Bounds, areApart bool) []interval {
	n := s.Length()
	rest := interval{end: n}
	if bounds == nil {
		return []interval{rest}
	}
	starts := []int64{} // of the sequences that begin in the chunk or right after it, in scan order
	before := int64(-1)
	for k := range bounds.Count + 1 {
		start := num.Clamp(bounds.At(k), -1, n+1)
		if s.IsReversed {
			start = n - num.Clamp(bounds.At(bounds.Count-k), -1, n+1)
		}
		// They rise even if the caller has changed the bounds since the check.
		if before = max(before, start); before >= 0 && before <= n {
			starts = append(starts, before)
		}
	}
	if len(starts) == 0 {
		return []interval{rest}
	}
	found := []interval{}
	if starts[0] > 0 {
		found = append(found, interval{end: starts[0]})
	}
	switch last := len(starts) - 1; {
	case areApart:
		for k := range last {
			found = append(found, interval{first: starts[k], end: starts[k+1], begins: true})
		}
	case starts[0] < starts[last]:
		middle := interval{first: starts[0], end: starts[len(starts)-1], begins: true}
		inMemory := slices.Clone(starts)
		for k := range inMemory {
			inMemory[k] -= middle.first
			if s.IsReversed {
				inMemory[k] = middle.end - middle.first - inMemory[k]
			}
		}
		if s.IsReversed {
			slices.Reverse(inMemory)
		}
		middle.bounds = &cpu.Bounds{Wide: inMemory, Stride: 1, Count: int64(len(inMemory) - 1)}
		found = append(found, middle)
	}
	return append(found, interval{first: starts[len(starts)-1], end: n, begins: true})
}

// slice is the scan of some positions, which are given in scan order, and its operands.
func (s *Scan) slice(args []tensor.Tensor, first, end int64) (*Scan, []tensor.Tensor) {
	if s.IsReversed {
		first, end = s.Length()-end, s.Length()-first
	}
	part, own := *s, slices.Clone(args)
	if part.parent = s; len(s.Shape) == 0 {
		return &part, own
	}
	part.Shape = slices.Clone(s.Shape)
	part.Shape[s.Dim] = end - first
	for i := range own {
		if t := &own[i]; t.Given() {
			t.Data += uintptr(first * t.ElementStrides()[s.Dim] * t.DType.Size())
		}
	}
	return &part, own
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
func (s *Scan) runBackwardChunk(args []tensor.Tensor, bounds *cpu.Bounds) {
	rows, form := s.carryRows(), s.Recurrence.carries
	if rows == 0 {
		return
	}
	carryIn := &args[operand.DCarryIn]
	maps := s.suffixMaps(&args[operand.DCarryOut], rows)
	states, _ := s.prefixes(&args[operand.CarryIn], rows)
	args = without(args, operand.CarryIn, operand.DCarryOut, operand.DCarryIn)
	intervals := s.intervals(bounds, false)
	for i := len(intervals) - 1; i >= 0; i-- {
		interval := intervals[i]
		part, own := s.slice(args, interval.first, interval.end)
		prefixes := make([]state, rows)
		for row := range prefixes {
			if prefixes[row] = form.toPrefix(states[row]); interval.begins {
				prefixes[row] = s.Recurrence.initial
			}
		}
		h := part.of(interval.bounds, all).start(own)
		switch {
		case interval.bounds == nil && h.n > 0:
			h.isChunk = true
			h.scanChunk(prefixes, maps, i == 0 && carryIn.Given())
		case interval.bounds != nil && args[operand.Dx].Given():
			part.forSequences(own, interval.bounds, operand.Dx, operand.Dy, 0, (*Scan).backward)
		}
		if interval.begins { // nothing of it reaches those before it
			maps = slices.Repeat([]suffixMap{form.identity}, int(rows))
		}
	}
	if carryIn.Given() {
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
