package host

// #cgo CFLAGS: -O2
// #include "scan.h"
import "C"

import (
	"unsafe"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/num"
)

// This file divides rows of packed sequences into lanes. A sequence is cut into segments of
// splitLength positions, of which the last may be shorter; a lane is a segment of one row. Lanes of
// similar length advance together, those that end early padded with zeros: nothing follows them in
// their sequences. A segment belongs to the split of the row in which it begins. At most one segment
// of a split continues one of the split before, and at most one is continued in the next split, so
// that prefixes and suffixes are combined split by split.

const (
	maxPackedSplitLength = 512
	maxSegments          = 4096 // segments that are sorted by length, about at most
	sortedElements       = 4 * cpu.Grain
)

// segment is a part of a sequence; with a count above 1, so many whole sequences of this length end
// to end.
type segment struct {
	start, length  int64 // in scan order
	sequence       int64 // its number in scan order
	count          int64
	enters, leaves bool // the segment continues another, and is continued by another
}

// batch are the lanes of a call: lanes of some segments (the arrays), adjacent rows of one segment,
// or segments end to end in one row.
type batch struct {
	n       int64 // positions of the longest lane, which is the first
	crosses bool  // a segment of the batch continues another or is continued
	hasRows bool  // the lanes are rows of a segment
	isRun   bool  // the lanes are the sequences of a segment in a row
	segment
	row            int64 // the first, or the only one
	isRagged       bool  // the lanes differ in length
	starts, rows   [C.SCAN_BATCH]int64
	sequences      [C.SCAN_BATCH]int64
	lengths        [C.SCAN_BATCH]int64
	firsts         [C.SCAN_BATCH]int64 // scratch for indices
	enters, leaves [C.SCAN_BATCH]bool
}

// segmentTasks are the tasks of a packed run: some splits of some rows each.
func (h *division) segmentTasks() (splits, rows, tasks int64) {
	rows, elements := h.rows, int64(sortedElements)
	if h.mayShareSegments() {
		batch, _ := h.taskLanes()
		batch = max(batch, num.Clamp(rows/8/C.SCAN_LANES, 1, C.SCAN_WIDEST/C.SCAN_LANES)*C.SCAN_LANES)
		rows, elements = min(rows, batch), cpu.Grain
	}
	splits = max(1, elements/(h.splitLength*rows))
	return splits, rows, num.CeilDiv(h.splits(), splits) * num.CeilDiv(h.rows, rows)
}

// mayShareSegments reports whether rows suffice for the lanes of a segment.
func (h *division) mayShareSegments() bool { return h.rows >= C.SCAN_LANES }

// inSegments runs body in parallel over batches of lanes: of all segments, or of those that continue
// others or are continued.
func (h *division) inSegments(onlyCrossing bool, body func(w *worker, count int64)) {
	if h.lanes == 0 {
		return
	}
	splits, rows, tasks := h.segmentTasks()
	each := num.CeilDiv(h.rows, rows) // tasks of the same splits
	h.parallel(tasks, func(w *worker, task int64) {
		first, row := task/each*splits, task%each*rows
		end, count := min(first+splits, h.splits()), min(rows, h.rows-row)
		flush := func() {
			h.inSegmentBatches(w, row, count, func(count int64) { body(w, count) })
			w.segments = w.segments[:0]
		}
		if onlyCrossing {
			h.findCrossing(w, first, end, row == 0)
		} else {
			h.findSegments(w, first*h.splitLength, end*h.splitLength, flush)
		}
		flush()
	})
}

// findSegments appends the segments that begin at positions low to high-1 to those of the worker,
// and calls flush when there are many.
func (h *division) findSegments(w *worker, low, high int64, flush func()) {
	q := h.packed
	for k := q.search(0, low); k < q.Count; {
		count := min(q.Count-k, int64(len(w.bounds))-1)
		bounds := w.bounds[:count+1]
		q.read(bounds, k)
		for i := int64(0); i < count; {
			if bounds[i] >= high {
				return
			}
			i += h.addSequences(w, k+i, bounds[i:], low, high)
			if len(w.segments) >= maxSegments {
				flush()
			}
		}
		k += count
	}
}

// addSequences appends the segments of sequence k, which has the first of some bounds, or of sequences
// from k on that are equally long and short. It returns the number of sequences.
func (h *division) addSequences(w *worker, k int64, bounds []int64, low, high int64) int64 {
	length := bounds[1] - bounds[0]
	if bounds[0] >= low && length <= h.splitLength && bounds[1] <= h.n && (length == 1 || h.packed.part == all) {
		count, high := 1, min(high, h.n-length+1)
		for count < len(bounds)-1 && bounds[count+1]-bounds[count] == length && bounds[count] < high {
			count++
		}
		if length > 0 && h.packed.part != allButLast {
			w.segments = append(w.segments, segment{start: bounds[0], length: length, sequence: k, count: int64(count)})
		}
		return int64(count)
	}
	first, end := h.packed.partOf(bounds[0], bounds[1])
	for s := h.segmentOf(k, first, end, low); s.length > 0 && s.start < high; s = h.segmentOf(k, first, end, s.start+1) {
		w.segments = append(w.segments, s)
	}
	return 1
}

// findCrossing appends the segments that continue others, or are continued, and sets the spans of
// their splits.
func (h *division) findCrossing(w *worker, firstSplit, endSplit int64, setsSpans bool) {
	q := h.packed
	k := q.search(0, firstSplit*h.splitLength)
	for split := firstSplit; split < endSplit; split++ {
		low := split * h.splitLength
		high := min(low+h.splitLength, h.n)
		last := q.search(k, high)
		for _, sequence := range [...]int64{k, max(last, k+1)} {
			if sequence > last || sequence == q.Count {
				break
			}
			first, end := q.positions(sequence)
			s := h.segmentOf(sequence, first, end, low)
			if first >= high || s.length <= 0 || !s.enters && !s.leaves {
				continue
			}
			w.segments = append(w.segments, s)
			if s.enters && s.leaves && setsSpans {
				h.spans[split] = s.start
			}
		}
		k = last
	}
}

// segmentOf is the first segment of sequence k that begins at or after a position; its length is not
// positive if there is none.
func (h *division) segmentOf(k, first, end, low int64) segment {
	s := segment{start: first, sequence: k, count: 1}
	if s.enters = first < low; s.enters {
		s.start += num.CeilDiv(low-first, h.splitLength) * h.splitLength
	}
	s.length = min(h.splitLength, end-s.start)
	s.leaves = s.start+s.length < end
	return s
}

// sortSegments sorts the segments of a worker by length, the longest first (counting sort).
func (w *worker) sortSegments() {
	most := int64(0)
	for i := range w.segments {
		most = max(most, w.segments[i].length)
	}
	if int64(len(w.places)) < most+2 {
		w.places = make([]int32, most+2)
	}
	places := w.places[:most+2]
	clear(places)
	for i := range w.segments {
		places[most-w.segments[i].length+1]++
	}
	for i := 1; i < len(places); i++ {
		places[i] += places[i-1]
	}
	if cap(w.sorted) < len(w.segments) {
		w.sorted = make([]segment, len(w.segments), 2*len(w.segments))
	}
	w.sorted = w.sorted[:len(w.segments)]
	for i := range w.segments {
		place := &places[most-w.segments[i].length]
		w.sorted[*place] = w.segments[i]
		*place++
	}
	w.segments, w.sorted = w.sorted, w.segments
}

// inSegmentBatches calls body for batches of lanes: `rows` rows, from a row on, of the segments of a
// worker.
func (h *division) inSegmentBatches(w *worker, row, rows int64, body func(count int64)) {
	b := &w.batch
	if h.mayShareSegments() {
		for _, s := range w.segments {
			for range s.count {
				b.setRows(s, row)
				body(rows)
				s.start += s.length
				s.sequence++
			}
		}
		return
	}
	if len(w.segments) > 1 {
		w.sortSegments()
	}
	for left := w.segments; len(left) > 0; {
		if s := &left[0]; s.count >= C.SCAN_LANES {
			count := min(s.count, C.SCAN_BATCH)
			for b.row = range h.rows {
				b.segment, b.n, b.crosses, b.hasRows, b.isRun, b.isRagged = *s, s.length, false, false, true, false
				body(count)
			}
			s.start += count * s.length
			s.sequence += count
			if s.count -= count; s.count == 0 {
				left = left[1:]
			}
			continue
		}
		var count int64
		left, count = b.take(left, h.rows)
		body(count)
	}
}

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
	h.setPlaces(b, to, number, count, b.start, b.length, b.starts[:count])
	if !b.hasRows && !b.isRun && b.isRagged {
		to.lengths = C.uint64_t(uintptr(unsafe.Pointer(&b.lengths[0])))
	}
}

// setPlaces describes an operand of the lanes of a batch whose lanes begin at some places along the
// scanned dimension: all at one, or at a distance of each other, or anywhere.
func (h *division) setPlaces(b *batch, to *C.scan_operand, number int, count, place, distance int64, places []int64) {
	step := h.steps[number]
	switch {
	case b.hasRows:
		h.setRows(to, number, place*step, b.row, count)
	case b.isRun:
		to.regular, to.pitch, to.offset[0] = 1, C.int64_t(distance*step), C.int64_t(place*step+h.rowOffsets[number][b.row])
	default:
		offsets := &h.rowOffsets[number]
		for i, place := range places {
			to.offset[i] = C.int64_t(place*step + offsets[b.rows[i]])
		}
	}
}

// setRowOffsets prepares setLanes for few rows.
func (h *division) setRowOffsets() {
	for i := range h.args {
		if offsets := &h.rowOffsets[i]; h.args[i].Given() {
			h.views[i].VisitRuns(0, h.rows, func(at, offset, count, step int64) {
				for k := range count {
					offsets[at+k] = offset + k*step
				}
			})
		}
	}
}

// laneOf is the number of the split and row of lane i, and whether its segment continues another and
// is continued.
func (h *division) laneOf(b *batch, i int64) (lane int64, enters, leaves bool) {
	if b.hasRows {
		return b.start/h.splitLength*h.rows + b.row + i, b.segment.enters, b.segment.leaves
	}
	return b.starts[i]/h.splitLength*h.rows + b.rows[i], b.enters[i], b.leaves[i]
}

// spanned reports whether the split of a lane has a segment that continues another and is continued.
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
