package host

// #cgo CFLAGS: -O2
// #include "scan.h"
import "C"

import (
	"math"
	"slices"
	"sync"
	"unsafe"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/ops/scan/operand"
	"github.com/sternway/sternway/core/internal/tensor"
)

// backwardRun is one run of the gradient of a scan on the CPU.
type backwardRun struct {
	division // of dy, x, indices, dx
	Recurrence
	kind      int64  // scan_kind of the C loops
	x         int    // number of the operand that the C loops read as x; 0: they read none
	hasRecord []bool // lanes with a new running maximum, for cummax and cummin
	isChunk   bool   // rows are chunks of longer rows: each has a prefix and a suffix
}

// RunBackward computes dx, with the sequences of RunForward. Indices are positions of the
// whole row, so that a gradient by indices needs no bounds.
func (s *Scan) RunBackward(args []tensor.Tensor, bounds *cpu.Bounds) {
	args = without(args, operand.Seqlens)
	switch isByIndex := args[operand.Indices].Given(); {
	case isByIndex:
		s.backward(args)
	case s.Carries:
		s.runBackwardChunk(args, bounds)
	default:
		s.forSequences(args, bounds, operand.Dx, operand.Dy, 0, (*Scan).backward)
	}
}

// backward computes dx of rows, or of their sequences.
func (s *Scan) backward(args []tensor.Tensor) {
	h := s.start(args)
	switch {
	case h.rows == 0 || h.n == 0:
	case args[operand.Indices].Given():
		h.indexed()
	case h.lanes == h.rows:
		h.downsweep(nil, nil, nil)
	default:
		h.scan(slices.Repeat([]state{h.initial}, int(h.rows)), make([]float64, h.rows))
	}
}

// start prepares a run.
func (s *Scan) start(args []tensor.Tensor) *backwardRun {
	space := s.space(args)
	h := &backwardRun{division: s.divide(args, &space, 1, minSplitLength), Recurrence: *s.Recurrence, kind: s.Recurrence.loops[0]}
	if s.FirstWins {
		h.kind = s.Recurrence.loops[1]
	}
	if args[operand.X].Given() {
		h.x = operand.X
	}
	return h
}

// scan computes dx of rows that are split: an upsweep for the prefixes, an upsweep for the
// suffixes, and a downsweep. prefixes are those before the rows. suffixes are those that enter the
// rows on the right, and receives those at their beginnings. It returns the aggregates of lanes,
// and the prefixes before them.
func (h *backwardRun) scan(prefixes []state, suffixes []float64) (aggregates, before []state) {
	aggregates, carries := make([]state, h.lanes), make([]float64, h.lanes)
	last := aggregates // of the segments that are continued
	if h.packed != nil {
		last = make([]state, h.lanes)
	}
	h.upsweep(aggregates, last, carries)
	before = slices.Concat(prefixes, make([]state, h.lanes-h.rows))
	for i := h.rows; i < h.lanes; i++ {
		prefix := before[i-h.rows]
		if !h.spanned(i - h.rows) {
			prefix = h.initial
		}
		before[i] = h.combine(prefix, last[i-h.rows], h.FirstWins)
	}
	h.scanSplits(aggregates, before, carries, suffixes)
	return aggregates, before
}

// scanSplits computes the carry-in of each split from the suffixes of single splits, from the last
// split to the first, and then runs the downsweep. carries has the suffixes, and receives the
// carry-ins. Sums are compensated: the rounding error of each (TwoSum) is carried as well. next are
// the suffixes that enter the rows on the right, and receives those at their beginnings.
func (h *backwardRun) scanSplits(aggregates, before []state, carries, next []float64) {
	carryIn := make([]state, h.lanes)
	for i := range before {
		carryIn[i] = h.toCarryIn(before[i])
	}
	if h.replaces != nil {
		h.hasRecord = make([]bool, h.lanes)
		for i := range before {
			h.hasRecord[i] = h.replaces(before[i], aggregates[i], h.FirstWins)
		}
	}
	var checkpoints []float64
	if !h.suffixIgnoresPrefix {
		if h.packed == nil {
			checkpoints = make([]float64, num.CeilDiv(h.lanes+C.SCAN_LANES, C.SCAN_LANES)*checkpointCount(h.splitLength))
		}
		h.suffixUpsweep(carryIn, carries, checkpoints)
	}
	rounding := make([]float64, h.rows) // rounding errors of next
	for i := h.lanes - 1; i >= 0; i-- {
		shift, row := carries[i], i%h.rows
		carried := h.applySuffix(before[i], aggregates[i], h.FirstWins, next[row])
		nextRounding := h.applySuffix(before[i], aggregates[i], h.FirstWins, rounding[row])
		carries[i] = next[row] + rounding[row]
		isSpanned := h.spanned(i)
		if !isSpanned {
			carried, nextRounding = 0, 0
		}
		if isSpanned && h.mayLeaveRange && shift-shift != 0 && aggregates[i][0] == aggregates[i][0] {
			next[row], rounding[row] = h.exactSuffix(i, carries[i]), 0
			continue
		}
		sum := shift + carried
		part := sum - carried
		if nextRounding += (shift - part) + (carried - (sum - part)); nextRounding-nextRounding != 0 {
			nextRounding = 0
		}
		next[row], rounding[row] = sum, nextRounding
	}
	for row := range next {
		next[row] += rounding[row]
	}
	if h.args[operand.Dx].Given() {
		h.downsweep(carryIn, carries, checkpoints)
	}
}

// upsweep computes the aggregate of each lane and, unless carries is nil, its suffix. Of packed
// sequences, states and carries are those of the segments that continue others, and last has the
// aggregates of those that are continued. It returns the smallest first number of the aggregates,
// which for scans by indices is 0 if the indices of a lane cannot be those of a scan; other kinds
// ignore it.
func (h *backwardRun) upsweep(states, last []state, carries []float64) float64 {
	var lock sync.Mutex
	least := math.Inf(1)
	h.forEachBatch(false, func(w *worker, first, count int64) {
		batch := ofLanes(&h.division, w, states, first, count, false, state{}, w.states[:])
		h.initStates(w, batch, first)
		if carries == nil {
			C.sw_scan_upsweep(&w.call, cStates(batch), nil)
		} else {
			suffixes := ofLanes(&h.division, w, carries, first, count, false, 0, w.carries[:])
			C.sw_scan_upsweep(&w.call, cStates(batch), scanDoubles(suffixes))
			store(&h.division, w, carries, false, suffixes)
		}
		store(&h.division, w, states, false, batch)
		store(&h.division, w, last, true, batch)
		lock.Lock()
		defer lock.Unlock()
		for _, s := range batch {
			least = min(least, s[0])
		}
	})
	return least
}

// exactSuffix computes the suffix of one lane for a carry-in. It serves lanes with an infinity,
// whose suffix is not an affine function of the carry-in.
func (h *backwardRun) exactSuffix(lane int64, carryIn float64) float64 {
	h.parallel(1, func(w *worker, _ int64) {
		if h.packed != nil {
			w.batch.setRows(segment{start: h.spans[lane/h.rows], length: h.splitLength}, lane%h.rows)
		}
		h.prepare(w, lane, 1, false)
		w.states[0], w.carries[0] = h.initial, carryIn
		C.sw_scan_upsweep(&w.call, cStates(w.states[:1]), scanDoubles(w.carries[:1]))
		carryIn = w.carries[0]
	})
	return carryIn
}

// suffixUpsweep computes the suffixes of lanes from their prefixes, and stores the prefix before
// each tile as a checkpoint.
func (h *backwardRun) suffixUpsweep(carryIn []state, carries, checkpoints []float64) {
	h.forEachBatch(false, func(w *worker, first, count int64) {
		suffixes := ofLanes(&h.division, w, carries, first, count, false, 0, w.carries[:])
		if h.hasNoRecord(w, first, count) {
			C.sw_scan_sum_suffixes(&w.call, scanDoubles(suffixes))
		} else {
			before := w.checkpoints
			if checkpoints != nil {
				before = checkpoints[h.checkpointOffset(first):]
			}
			C.sw_scan_suffix_upsweep(&w.call, cStates(h.carriesIn(w, carryIn, first, count)), scanDoubles(suffixes), scanDoubles(before))
		}
		store(&h.division, w, carries, false, suffixes)
	})
}

// downsweep stores dx, from the prefixes and the carry-ins of lanes; whole rows have neither. The
// carry-ins become the suffixes of the lanes, except those by indices.
func (h *backwardRun) downsweep(carryIn []state, carries, checkpoints []float64) {
	h.forEachBatch(true, func(w *worker, first, count int64) {
		if h.hasNoRecord(w, first, count) {
			C.sw_scan_fill(&w.call, 0)
			return
		}
		if w.call.whole != 0 {
			C.sw_scan_downsweep(&w.call, nil, nil, scanDoubles(w.checkpoints))
			return
		}
		states, before := w.states[:count], w.checkpoints
		if h.initStates(w, states, first); h.x != operand.Indices {
			states = h.carriesIn(w, carryIn, first, count)
		}
		if checkpoints != nil {
			states, before = nil, checkpoints[h.checkpointOffset(first):]
		}
		suffixes := ofLanes(&h.division, w, carries, first, count, true, 0, w.carries[:])
		C.sw_scan_downsweep(&w.call, cStates(states), scanDoubles(suffixes), scanDoubles(before))
	})
}

// hasNoRecord reports whether no position of these lanes is a new running maximum, as in most of a
// long row.
func (h *backwardRun) hasNoRecord(w *worker, first, count int64) bool {
	if h.packed == nil || h.hasRecord == nil {
		return h.hasRecord != nil && !slices.Contains(h.hasRecord[first:first+count], true)
	}
	for i := range count {
		if !w.batch.crosses {
			return false
		}
		if lane, enters, _ := h.laneOf(&w.batch, i); !enters || h.hasRecord[lane] {
			return false
		}
	}
	return true
}

// carriesIn are the prefixes before lanes, in the form of the C loops.
func (h *backwardRun) carriesIn(w *worker, carryIn []state, first, count int64) []state {
	return ofLanes(&h.division, w, carryIn, first, count, false, h.toCarryIn(h.initial), w.states[:])
}

// checkpointCount is the size of the checkpoints of 32 lanes of n positions [float64].
func checkpointCount(n int64) int64 { return num.CeilDiv(n, C.SCAN_POSITIONS) * 2 * C.SCAN_LANES }

// checkpointOffset is the offset of the checkpoints of a task whose first lane is `first`
// [float64].
func (h *backwardRun) checkpointOffset(first int64) int64 {
	return num.CeilDiv(first, C.SCAN_LANES) * checkpointCount(h.splitLength)
}

// initStates sets the prefix of each lane as if its row began there.
func (h *backwardRun) initStates(w *worker, states []state, first int64) {
	for i := range states {
		states[i] = h.initial
	}
	for i := max(0, h.rows-first); h.x == operand.Indices && i < int64(len(states)); i++ {
		states[i] = h.indexPrefix(w, first, i)
	}
}

func cStates(s []state) *C.double { return (*C.double)(unsafe.Pointer(unsafe.SliceData(s))) }

// forEachBatch runs body in parallel over batches of lanes first..first+count-1, whose call is
// prepared.
func (h *backwardRun) forEachBatch(isDownsweep bool, body func(w *worker, first, count int64)) {
	h.inBatches(!isDownsweep, func(w *worker, first, count int64) {
		h.prepare(w, first, count, isDownsweep)
		body(w, first, count)
	})
}

// prepare sets the call of a worker: lanes of one length, the operands that are read and, in a
// downsweep, dx.
func (h *backwardRun) prepare(w *worker, first, count int64, isDownsweep bool) {
	n := h.lengthOf(w, first)
	w.call.kind, w.call.lanes, w.call.n, w.call.whole = C.int64_t(h.kind), C.int64_t(count), C.int64_t(n), 0
	if h.packed != nil && !w.batch.crosses || h.packed == nil && h.lanes == h.rows && !h.isChunk {
		w.call.whole = 1
	}
	if need := max(2*C.SCAN_BATCH, num.CeilDiv(count, C.SCAN_LANES)*checkpointCount(n)); int64(len(w.checkpoints)) < need {
		w.checkpoints = make([]float64, need)
	}
	h.setOperand(w, &w.call.dy, operand.Dy, first, count)
	if h.x != 0 {
		h.setOperand(w, &w.call.x, h.x, first, count)
	}
	if w.call.dx.data = 0; isDownsweep && h.args[operand.Dx].Given() {
		h.setOperand(w, &w.call.dx, operand.Dx, first, count)
	}
}

func scanDoubles(s []float64) *C.double { return (*C.double)(unsafe.Pointer(unsafe.SliceData(s))) }
