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
	rows, n     int64                     // number of rows, or of sequences of one length in them, and their positions
	outer       int64                     // rows of the shape
	views       [cpu.MaxOperands]cpu.View // rows of each operand
	steps       [cpu.MaxOperands]int64    // distance of positions in scan order [elements]
	splitLength int64                     // positions of a lane; the last split of a row may be shorter
	lanes       int64
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
	h.outer = space.Size(0, kept)
	if h.rows = h.outer; s.packed != nil {
		h.rows *= int64(len(s.packed.starts))
	}
	if h.rows == 0 {
		return h
	}
	for i := range h.args {
		h.views[i] = space.View(i, 0, kept, false)
		h.steps[i] = space.Stride[i][space.Kept]
		if s.IsReversed && h.args[i].Given() {
			if s.packed == nil { // else its starts count from the end
				h.args[i].Data += uintptr(h.steps[i] * (h.n - 1) * h.args[i].DType.Size())
			}
			h.steps[i] = -h.steps[i]
		}
	}
	if h.splitLength = h.n; h.n == 0 {
		return h
	}
	if h.n > 2*leastLength && (h.rows < manyRows || h.n > maxUnsplitLength) {
		// An odd multiple: lanes a power of two apart would map to the same cache sets.
		h.splitLength = (num.Clamp(h.rows*h.n/targetLanes, leastLength, maxSplitLength)/splitMultiple | 1) * splitMultiple
	}
	h.lanes = num.CeilDiv(h.n, h.splitLength) * h.rows
	return h
}

// fullLanes is the number of lanes of splitLength positions. Lanes after them are the last, shorter
// splits of their rows.
func (h *division) fullLanes() int64 { return h.n / h.splitLength * h.rows }

// lengthOf is the number of positions of a lane.
func (h *division) lengthOf(lane int64) int64 {
	if lane >= h.fullLanes() {
		return h.n % h.splitLength
	}
	return h.splitLength
}

// inBatches runs body in parallel over batches of lanes first..first+count-1, which are equally
// long.
func (h *division) inBatches(body func(w *worker, first, count int64)) {
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
	checkpoints []float64
	sums        []float64
}

var workers = sync.Pool{New: func() any { return new(worker) }}

// parallel runs body in parallel over tasks.
func (h *division) parallel(tasks int64, body func(w *worker, task int64)) {
	program := unsafe.Pointer(h.Scan)
	if h.packed != nil { // a part of a run is no program
		program = nil
	}
	threads.Run(program, tasks, 1, func() (*worker, func()) {
		w := workers.Get().(*worker)
		return w, func() { workers.Put(w) }
	}, body)
}

// setOperand describes an operand of lanes first..first+count-1 to the C loops.
func (h *division) setOperand(to *C.scan_operand, number int, first, count int64) {
	t := &h.args[number]
	to.data, to._type, to.step, to.regular = C.uint64_t(t.Data), C.int64_t(t.DType.Row()), C.int64_t(h.steps[number]), 0
	if t.DType == tensor.Int64 {
		to._type = C.int64_t(tensor.Float64.Row()) // the C loops copy the bits
	}
	v, step := &h.views[number], h.steps[number]
	split, row := first/h.rows, first%h.rows
	isOneSplit := row+count <= h.rows
	switch {
	case h.packed != nil && h.outer == 1 && isOneSplit:
		base := split * h.splitLength
		if distance, isRegular := h.packed.spacing(row, count); isRegular {
			to.regular, to.pitch, to.offset[0] = 1, C.int64_t(distance*step), C.int64_t((base+h.packed.starts[row])*step)
			return
		}
		for i, start := range h.packed.starts[row : row+count] {
			to.offset[i] = C.int64_t((base + start) * step)
		}
		return
	case h.packed != nil:
	case v.Regular && isOneSplit:
		to.regular, to.pitch = 1, C.int64_t(v.Step)
		to.offset[0] = C.int64_t(split*h.splitLength*step + row*v.Step)
		return
	case v.N == 0 || h.rows == 1: // splits of one row
		pitch := h.splitLength * step
		to.regular, to.pitch, to.offset[0] = 1, C.int64_t(pitch), C.int64_t(first*pitch)
		return
	}
	for done := int64(0); done < count; {
		split, row := (first+done)/h.rows, (first+done)%h.rows
		sequence, row := row/h.outer, row%h.outer
		n := min(count-done, h.outer-row)
		offsets, base := to.offset[done:done+n], (split*h.splitLength+h.packed.start(sequence))*step
		v.VisitRuns(row, n, func(start, offset, count, step int64) {
			for i := range offsets[start : start+count] {
				offsets[start+int64(i)] = C.int64_t(base + offset + int64(i)*step)
			}
		})
		done += n
	}
}
