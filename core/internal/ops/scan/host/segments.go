package host

// #cgo CFLAGS: -O2
// #include "scan.h"
import "C"

import (
	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/num"
)

// This file divides rows of packed sequences into lanes. A sequence is cut into segments of
// splitLength positions, of which the last may be shorter; a lane is a segment of one row. Lanes of
// similar length advance together, those that end early padded with zeros: nothing follows them in
// their sequences. A segment belongs to the split of the row in which it begins. At most one
// segment of a split continues one of the split before, and at most one is continued in the next
// split, so that prefixes and suffixes are combined split by split.

const (
	maxPackedSplitLength = 512
	maxSegments          = 4096 // segments that are sorted by length, about at most
	sortedElements       = 4 * cpu.Grain
	minSharedLength      = 64 // mean positions of sequences whose rows are not adjacent
)

// segment is a part of a sequence; with a count above 1, so many whole sequences of this length end
// to end.
type segment struct {
	start, length  int64 // in scan order
	sequence       int64 // its number in scan order
	count          int64
	enters, leaves bool // the segment continues another, and is continued by another
}

// segmentTasks are the tasks of a packed run: some splits of some rows each.
func (h *division) segmentTasks() (splits, rows, tasks int64) {
	rows, elements := min(h.rows, C.SCAN_LANES), int64(sortedElements)
	if h.sharesSegments {
		batch, _ := h.taskLanes()
		if h.hasAdjacentRows() { // short segments have few elements in a row
			batch = max(batch, num.Clamp(h.rows/8/C.SCAN_LANES, 1, C.SCAN_WIDEST/C.SCAN_LANES)*C.SCAN_LANES)
		}
		rows, elements = min(h.rows, batch), cpu.Grain
	}
	splits = max(1, elements/(h.splitLength*rows))
	return splits, rows, num.CeilDiv(h.splits(), splits) * num.CeilDiv(h.rows, rows)
}

// mayShareSegments reports whether rows are lanes of one segment: there are enough of them, and
// they are adjacent in memory, or segments are long enough to use whole cache lines of each row.
func (h *division) mayShareSegments() bool {
	return h.rows >= C.SCAN_LANES && (h.hasAdjacentRows() || h.n >= minSharedLength*h.packed.Count)
}

// hasAdjacentRows reports whether rows are nearer in memory than positions.
func (h *division) hasAdjacentRows() bool {
	for i := range h.args {
		if num.Abs(h.views[i].Step) > num.Abs(h.steps[i]) {
			return false
		}
	}
	return true
}

// inSegments runs body in parallel over batches of lanes: of all segments, or of those that
// continue others or are continued.
func (h *division) inSegments(onlyCrossing bool, body func(w *worker, count int64)) {
	if h.lanes == 0 {
		return
	}
	splits, rows, tasks := h.segmentTasks()
	each := num.CeilDiv(h.rows, rows) // tasks of the same splits
	h.parallel(tasks, func(w *worker, task int64) {
		first, row := task/each*splits, task%each*rows
		end, count := min(first+splits, h.splits()), min(rows, h.rows-row)
		if w.batch.row = row; !h.sharesSegments {
			h.setRowOffsets(&w.batch.offsets, row, count)
		}
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

// addSequences appends the segments of sequence k, which has the first of some bounds, or of
// sequences from k on that are equally long and short. It returns the number of sequences.
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

// segmentOf is the first segment of sequence k that begins at or after a position; its length is
// not positive if there is none.
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

// inSegmentBatches calls body for batches of lanes: `rows` rows, from a row on, of the segments of
// a worker.
func (h *division) inSegmentBatches(w *worker, row, rows int64, body func(count int64)) {
	b := &w.batch
	if h.sharesSegments {
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
			for b.rows[0] = range rows {
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
		left, count = b.take(left, rows)
		body(count)
	}
}
