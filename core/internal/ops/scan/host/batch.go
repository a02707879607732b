package host

// #cgo CFLAGS: -O2
// #include "scan.h"
import "C"

import (
	"unsafe"

	"github.com/sternway/sternway/core/internal/cpu"
)

// This file describes the lanes of a call of packed sequences to the C loops, and moves their
// states.

// batch are the lanes of a call: lanes of some segments (the arrays), adjacent rows of one segment,
// or segments end to end in one row.
type batch struct {
	n       int64 // positions of the longest lane, which is the first
	crosses bool  // a segment of the batch continues another or is continued
	hasRows bool  // the lanes are rows of a segment
	isRun   bool  // the lanes are the sequences of a segment in a row
	segment
	row            int64               // the first
	isRagged       bool                // the lanes differ in length
	offsets        rowOffsets          // of operands, from row `row` on, unless hasRows
	starts, rows   [C.SCAN_BATCH]int64 // rows are counted from `row` on
	sequences      [C.SCAN_BATCH]int64
	lengths        [C.SCAN_BATCH]int64
	firsts         [C.SCAN_BATCH]int64 // scratch for indices
	enters, leaves [C.SCAN_BATCH]bool
}

// rowOffsets are the offsets of few rows of each operand [elements].
type rowOffsets [cpu.MaxOperands][C.SCAN_LANES]int64

// setRows sets the lanes to the rows of a segment.
func (b *batch) setRows(s segment, row int64) {
	b.segment, b.row, b.n, b.crosses, b.hasRows, b.isRun, b.isRagged = s, row, s.length, s.enters || s.leaves, true, false, false
}

// take sets the lanes to the first segments of a list: those of a group, or all of one length. It
// returns the segments that remain, and the number of lanes.
func (b *batch) take(segments []segment, rows int64) (left []segment, count int64) {
	b.n, b.crosses, b.hasRows, b.isRun = segments[0].length, false, false, false
	most := int64(C.SCAN_LANES)
	for most < C.SCAN_WIDEST && 2*most*b.n <= C.SCAN_TILE {
		most *= 2
	}
	shortest := b.n
	for len(segments) > 0 {
		s := &segments[0]
		if count > 0 && (count+rows > most && s.length < b.n || count+rows > C.SCAN_BATCH) {
			break
		}
		shortest, b.crosses = s.length, b.crosses || s.enters || s.leaves
		for row := range rows {
			b.starts[count], b.rows[count], b.lengths[count], b.sequences[count] = s.start, row, s.length, s.sequence
			b.enters[count], b.leaves[count] = s.enters, s.leaves
			count++
		}
		s.start += s.length
		s.sequence++
		if s.count--; s.count == 0 {
			segments = segments[1:]
		}
	}
	b.isRagged = shortest < b.n
	return segments, count
}

// setLanes describes an operand of the lanes of a batch.
func (h *division) setLanes(b *batch, to *C.scan_operand, number int, count int64) {
	h.setPlaces(b, to, number, &b.offsets[number], b.start, b.length, b.starts[:count])
	if !b.hasRows && !b.isRun && b.isRagged {
		to.lengths = C.uint64_t(uintptr(unsafe.Pointer(&b.lengths[0])))
	}
}

// setPlaces describes an operand of the lanes of a batch whose lanes begin at some places along the
// scanned dimension: all at one, or at a distance of each other, or anywhere.
func (h *division) setPlaces(b *batch, to *C.scan_operand, number int, offsets *[C.SCAN_LANES]int64, place, distance int64, places []int64) {
	step := h.steps[number]
	switch {
	case b.hasRows:
		h.setRows(to, number, place*step, b.row, int64(len(places)))
	case b.isRun:
		to.regular, to.pitch, to.offset[0] = 1, C.int64_t(distance*step), C.int64_t(place*step+offsets[b.rows[0]])
	default:
		for i, place := range places {
			to.offset[i] = C.int64_t(place*step + offsets[b.rows[i]])
		}
	}
}

// setRowOffsets sets the offsets of rows from a row on.
func (h *division) setRowOffsets(to *rowOffsets, row, count int64) {
	for i := range h.args {
		if offsets := &to[i]; h.args[i].Given() {
			h.views[i].VisitRuns(row, count, func(at, offset, count, step int64) {
				for k := range count {
					offsets[at+k] = offset + k*step
				}
			})
		}
	}
}

// laneOf is the number of the split and row of lane i, and whether its segment continues another
// and is continued.
func (h *division) laneOf(b *batch, i int64) (lane int64, enters, leaves bool) {
	if b.hasRows {
		return b.start/h.splitLength*h.rows + b.row + i, b.segment.enters, b.segment.leaves
	}
	return b.starts[i]/h.splitLength*h.rows + b.row + b.rows[i], b.enters[i], b.leaves[i]
}

// spanned reports whether the split of a lane has a segment that continues another and is
// continued.
func (h *division) spanned(lane int64) bool { return h.packed == nil || h.spans[lane/h.rows] > 0 }

// ofLanes are the states of the lanes of a batch: prefixes before the segments that continue others
// or, on the right, suffixes after those that are continued. Other segments have none. Rows of one
// sequence need no copy to scratch.
func ofLanes[T any](h *division, w *worker, states []T, first, count int64, isRight bool, none T, scratch []T) []T {
	if h.packed == nil {
		return states[first : first+count]
	}
	for i := range scratch[:count] {
		lane, continues, leaves := h.laneOf(&w.batch, int64(i))
		if isRight {
			continues = leaves
		}
		if scratch[i] = none; continues {
			scratch[i] = states[lane]
		}
	}
	return scratch[:count]
}

// store sets states to those of the lanes whose segments continue others or, on the right, are
// continued. Rows of one sequence have them there.
func store[T any](h *division, w *worker, states []T, isRight bool, found []T) {
	for i := 0; h.packed != nil && i < len(found); i++ {
		lane, continues, leaves := h.laneOf(&w.batch, int64(i))
		if isRight {
			continues = leaves
		}
		if continues {
			states[lane] = found[i]
		}
	}
}
