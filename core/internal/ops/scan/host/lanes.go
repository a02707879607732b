package host

// #cgo CFLAGS: -O2
// #include "forward.h"
// #include "linear.h"
import "C"

import (
	"sync"
	"unsafe"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/sternway/sternway/core/internal/threads"
)

// A lane is a row, or a split of a row where rows are few or very long. The division into lanes
// depends on the shape alone, so that results do not depend on the number of threads. Lane numbers
// count splits slowest, so that adjacent lanes are adjacent rows.
const (
	manyRows         = 2 * C.SCAN_LANES
	maxUnsplitLength = 1 << 18 // positions of a row that is never split, at most
	targetLanes      = 16 * C.SCAN_LANES
	minSplitLength   = 512
	maxSplitLength   = 4096
	splitMultiple    = 64
)

// division is the division of one run into lanes, with the operands in scan order.
type division struct {
	*Scan
	args        []tensor.Tensor
	rows, n     int64                     // number of rows, and their positions
	views       [cpu.MaxOperands]cpu.View // rows of each operand
	steps       [cpu.MaxOperands]int64    // distance of positions in scan order [elements]
	splitLength int64                     // positions of a lane; the last split of a row may be shorter
	lanes       int64
	// Of packed sequences: for each split, the start of a segment that continues another and is
	// continued; 0: it has none.
	spans          []int64
	sharesSegments bool // rows are lanes of one segment
}

// divide divides a run into lanes. With narrow above 1, so many rows that alternate in memory are
// one row: those of the last dimension before the scanned one. Splits have at least leastLength
// positions, except the last of a row. rows or n is 0 if there is nothing to do.
func (s *Scan) divide(args []tensor.Tensor, space *cpu.Space, narrow, leastLength int64) division {
	h := division{Scan: s, args: append([]tensor.Tensor{}, args...), n: s.Length()}
	kept := space.Kept
	if narrow > 1 {
		kept--
	}
	if h.rows = space.Size(0, kept); h.rows == 0 {
		return h
	}
	for i := range h.args {
		h.views[i] = space.View(i, 0, kept, false)
		h.steps[i] = space.Stride[i][space.Kept]
		if s.IsReversed && h.args[i].Given() {
			h.args[i].Data += uintptr(h.steps[i] * (h.n - 1) * h.args[i].DType.Size())
			h.steps[i] = -h.steps[i]
		}
	}
	if h.splitLength = h.n; h.n == 0 {
		return h
	}
	if h.n > 2*leastLength && (h.rows < manyRows || h.n > maxUnsplitLength) {
		// An odd multiple: lanes a power of two apart would map to the same cache sets.
		most := int64(maxSplitLength)
		if s.packed != nil {
			most = maxPackedSplitLength
		}
		h.splitLength = (num.Clamp(h.rows*h.n/targetLanes, leastLength, most)/splitMultiple | 1) * splitMultiple
	}
	if h.lanes = h.splits() * h.rows; s.packed != nil {
		h.spans, h.sharesSegments = make([]int64, h.splits()), h.mayShareSegments()
	}
	return h
}

// fullLanes is the number of lanes of splitLength positions. Lanes after them are the last, shorter
// splits of their rows.
func (h *division) fullLanes() int64 { return h.n / h.splitLength * h.rows }

// splits is the number of splits of a row.
func (h *division) splits() int64 { return num.CeilDiv(h.n, h.splitLength) }

// lengthOf is the number of positions of a lane, or of the longest lane of a batch of segments.
func (h *division) lengthOf(w *worker, lane int64) int64 {
	if h.packed != nil {
		return w.batch.n
	}
	if lane >= h.fullLanes() {
		return h.n % h.splitLength
	}
	return h.splitLength
}

// inBatches runs body in parallel over batches of lanes first..first+count-1, which are equally
// long. Those of packed sequences are described by the worker; upsweeps have those alone whose
// sequences go on in other splits.
func (h *division) inBatches(isUpsweep bool, body func(w *worker, first, count int64)) {
	if h.packed != nil {
		h.inSegments(isUpsweep, func(w *worker, count int64) { body(w, 0, count) })
		return
	}
	batch, group := h.taskLanes()
	full := h.fullLanes()
	tasks := num.CeilDiv(full, group)
	h.parallel(h.tasks(), func(w *worker, task int64) {
		first, end := task*group, full
		if task >= tasks {
			first, end = full+(task-tasks)*group, h.lanes
		}
		for end = min(end, first+group); first < end; first += batch {
			body(w, first, min(batch, end-first))
		}
	})
}

// taskLanes are the lanes of a batch, and of a task.
func (h *division) taskLanes() (batch, group int64) {
	batch = num.Clamp(cpu.Grain/h.splitLength/C.SCAN_LANES, 1, C.SCAN_BATCH/C.SCAN_LANES) * C.SCAN_LANES
	return batch, batch * num.Clamp(cpu.Grain/h.splitLength/batch, 1, manyRows)
}

// tasks is the number of tasks of inBatches. Lanes of a task are equally long.
func (h *division) tasks() int64 {
	if h.lanes == 0 {
		return 0
	}
	if h.packed != nil {
		_, _, tasks := h.segmentTasks()
		return tasks
	}
	_, group := h.taskLanes()
	full := h.fullLanes()
	return num.CeilDiv(full, group) + num.CeilDiv(h.lanes-full, group)
}

// worker is the scratch of one goroutine.
type worker struct {
	call        C.scan_call         // of gradients
	forward     C.scan_forward_call // of forward scans
	linear      C.linear_call       // of linear recurrences
	states      [C.SCAN_BATCH]state
	carries     [C.SCAN_BATCH]float64
	prefixes    [C.SCAN_BATCH]forwardState
	checkpoints []float64
	sums        []float64
	// Of packed sequences: the segments of a task, and the lanes of a call.
	segments, sorted []segment
	places           []int32
	bounds           [maxSegments]int64
	batch            batch
	stateOffsets     rowOffsets
}

var workers = sync.Pool{New: func() any { return new(worker) }}

// parallel runs body in parallel over tasks.
func (h *division) parallel(tasks int64, body func(w *worker, task int64)) {
	program := unsafe.Pointer(h.Scan)
	if h.parent != nil {
		program = unsafe.Pointer(h.parent)
	}
	threads.Run(program, tasks, 1, func() (*worker, func()) {
		w := workers.Get().(*worker)
		return w, func() { workers.Put(w) }
	}, body)
}

// setOperand describes an operand of lanes first..first+count-1 to the C loops.
func (h *division) setOperand(w *worker, to *C.scan_operand, number int, first, count int64) {
	h.setMemory(to, number)
	v, pitch := &h.views[number], h.splitLength*h.steps[number]
	switch split, row := first/h.rows, first%h.rows; {
	case h.packed != nil:
		h.setLanes(&w.batch, to, number, count)
	case v.N == 0 || h.rows == 1: // splits of one row
		to.regular, to.pitch, to.offset[0] = 1, C.int64_t(pitch), C.int64_t(first*pitch)
	case row+count <= h.rows:
		h.setRows(to, number, split*pitch, row, count)
	default:
		for done := int64(0); done < count; {
			split, row := (first+done)/h.rows, (first+done)%h.rows
			n := min(count-done, h.rows-row)
			h.setOffsets(to, number, done, split*pitch, row, n)
			done += n
		}
	}
}

// setMemory describes an operand without the offsets of lanes.
func (h *division) setMemory(to *C.scan_operand, number int) {
	t := &h.args[number]
	to.data, to._type, to.step, to.regular = C.uint64_t(t.Data), C.int64_t(t.DType.Row()), C.int64_t(h.steps[number]), 0
	if to.lengths = 0; t.DType == tensor.Int64 {
		to._type = C.int64_t(tensor.Float64.Row()) // the C loops copy the bits
	}
}

// setRows describes lanes that are adjacent rows, from an offset on [elements].
func (h *division) setRows(to *C.scan_operand, number int, base, row, count int64) {
	if v := &h.views[number]; v.Regular {
		to.regular, to.pitch, to.offset[0] = 1, C.int64_t(v.Step), C.int64_t(base+row*v.Step)
		return
	}
	h.setOffsets(to, number, 0, base, row, count)
}

// setOffsets sets the offsets of lanes that are adjacent rows, from lane `at` on.
func (h *division) setOffsets(to *C.scan_operand, number int, at, base, row, count int64) {
	offsets := to.offset[at : at+count]
	h.views[number].VisitRuns(row, count, func(start, offset, count, step int64) {
		for i := range offsets[start : start+count] {
			offsets[start+int64(i)] = C.int64_t(base + offset + int64(i)*step)
		}
	})
}
