package host

// #cgo CFLAGS: -O2 -I${SRCDIR}/../../../cpu
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
	"github.com/sternway/sternway/core/internal/threads"
)

// The work on the CPU is cut into lanes: rows, or parts of rows where there are too few of them or where they are very long. How
// depends on the shape alone, and so do the numbers. Lanes count parts slowest, so that neighbours are neighbouring rows.
const (
	fewRows    = 2 * C.SCAN_LANES
	longestRow = 1 << 18 // walked in one piece
	wantLanes  = 16 * C.SCAN_LANES
	leastPart  = 512
	mostPart   = 4096
	partPiece  = 64
)

// run is one run of a scan on the CPU.
type run struct {
	*Scan
	Recurrence
	kind    int64           // of the loops in C
	x       int             // the operand that they read as x; 0: none
	args    []tensor.Tensor // dy, x, indices, dx
	rows, n int64
	views   [4]cpu.View // of the rows
	steps   [4]int64    // from a position to the next in scan order
	part    int64       // positions of a lane; the last part of a row may be shorter
	lanes   int64
	winning []bool // lanes in which some position wins, of kinds that select
}

// worker is the scratch of one goroutine.
type worker struct {
	call        C.scan_call
	states      [C.SCAN_BATCH]state
	carries     [C.SCAN_BATCH]float64
	checkpoints []float64
	sums        []float64
}

var workers = sync.Pool{New: func() any { return new(worker) }}

// Host finds dx.
func (s *Scan) Run(args []tensor.Tensor) {
	h := s.start(args)
	switch {
	case h.rows == 0 || h.n == 0:
	case args[operand.Indices].Given():
		h.indexed()
	default:
		h.scan()
	}
}

// onHost prepares a run: how the work is cut into lanes, and where the operands lie in scan order.
func (s *Scan) start(args []tensor.Tensor) *run {
	h := &run{Scan: s, Recurrence: *s.Recurrence, kind: s.Recurrence.loops[0], args: append([]tensor.Tensor{}, args...), n: s.Length()}
	if s.FirstWins {
		h.kind = s.Recurrence.loops[1]
	}
	space := s.space(args)
	if h.rows = space.Size(0, space.Kept); h.rows == 0 || h.n == 0 {
		return h
	}
	for i := range h.args {
		h.views[i] = space.View(i, 0, space.Kept, false)
		h.steps[i] = space.Stride[i][space.Kept]
		if s.IsReversed && h.args[i].Given() {
			h.args[i].Data += uintptr(h.steps[i] * (h.n - 1) * h.args[i].DType.Size())
			h.steps[i] = -h.steps[i]
		}
	}
	h.part = h.n
	if h.n > 2*leastPart && (h.rows < fewRows || h.n > longestRow) {
		// An odd number of pieces: lanes a power of two apart would fight for the same lines of a cache.
		h.part = (num.Clamp(h.rows*h.n/wantLanes, leastPart, mostPart)/partPiece | 1) * partPiece
	}
	h.lanes = num.CeilDiv(h.n, h.part) * h.rows
	if h.args[operand.X].Given() {
		h.x = operand.X
	}
	return h
}

// scan finds dx. Of rows in parts: first the state before each part, then what leaves the parts alone, then what they carry.
func (h *run) scan() {
	if h.lanes == h.rows {
		h.walk(nil, nil, nil)
		return
	}
	parts, carries := make([]state, h.lanes), make([]float64, h.lanes)
	h.fold(parts, carries)
	before := make([]state, h.lanes)
	for i := range before {
		if before[i] = h.initial; int64(i) >= h.rows {
			before[i] = h.combine(before[int64(i)-h.rows], parts[int64(i)-h.rows], h.FirstWins)
		}
	}
	h.carry(parts, before, carries)
}

// carry ends a scan of parts by themselves, and carries by what leaves each of them when nothing enters it.
func (h *run) carry(parts, before []state, carries []float64) {
	entering := make([]state, h.lanes)
	for i := range before {
		entering[i] = h.enter(before[i])
	}
	if h.wins != nil {
		h.winning = make([]bool, h.lanes)
		for i := range before {
			h.winning[i] = h.wins(before[i], parts[i], h.FirstWins)
		}
	}
	var checkpoints []float64
	if !h.folds {
		checkpoints = make([]float64, num.CeilDiv(h.lanes+C.SCAN_LANES, C.SCAN_LANES)*checkpointsOf(h.part))
		h.leave(entering, carries, checkpoints)
	}
	next, lost := make([]float64, h.rows), make([]float64, h.rows) // lost: what rounding takes
	for i := h.lanes - 1; i >= 0; i-- {
		shift, row := carries[i], i%h.rows
		carried := h.cross(before[i], parts[i], h.FirstWins, next[row])
		less := h.cross(before[i], parts[i], h.FirstWins, lost[row])
		carries[i] = next[row] + lost[row]
		if h.bends && shift-shift != 0 && parts[i][0] == parts[i][0] {
			next[row], lost[row] = h.again(i, carries[i]), 0
			continue
		}
		sum := shift + carried
		part := sum - carried
		if less += (shift - part) + (carried - (sum - part)); less-less != 0 {
			less = 0
		}
		next[row], lost[row] = sum, less
	}
	h.walk(entering, carries, checkpoints)
}

// fold finds the states of lanes by themselves, and the least first number of them.
func (h *run) fold(states []state, carries []float64) float64 {
	var lock sync.Mutex
	least := math.Inf(1)
	h.each(false, func(w *worker, first, count int64) {
		own := states[first : first+count]
		h.begin(w, own, first)
		C.sw_scan_fold(&w.call, cStates(own), scanDoubles(carries[first:first+count]))
		lock.Lock()
		defer lock.Unlock()
		for _, s := range own {
			least = min(least, s[0])
		}
	})
	return least
}

// again finds what leaves one lane from what enters it.
func (h *run) again(lane int64, entering float64) float64 {
	h.parallel(1, func(w *worker, _ int64) {
		h.hand(w, lane, 1, false)
		w.states[0], w.carries[0] = h.initial, entering
		C.sw_scan_fold(&w.call, cStates(w.states[:1]), scanDoubles(w.carries[:1]))
		entering = w.carries[0]
	})
	return entering
}

// leave finds what leaves lanes from the states that enter them, and keeps those before each of their tiles.
func (h *run) leave(entering []state, carries, checkpoints []float64) {
	h.each(false, func(w *worker, first, count int64) {
		if h.still(first, count) {
			C.sw_scan_pass(&w.call, scanDoubles(carries[first:]))
			return
		}
		C.sw_scan_leave(&w.call, cStates(entering[first:]), scanDoubles(carries[first:]), scanDoubles(checkpoints[h.checkpoint(first):]))
	})
}

// walk takes the states and the carries that enter the lanes, or those of whole rows, and stores dx.
func (h *run) walk(entering []state, carries, checkpoints []float64) {
	h.each(true, func(w *worker, first, count int64) {
		if h.still(first, count) {
			C.sw_scan_clear(&w.call)
			return
		}
		if w.call.whole != 0 {
			C.sw_scan_walk(&w.call, nil, nil, scanDoubles(w.checkpoints))
			return
		}
		states, before := w.states[:count], w.checkpoints
		if h.begin(w, states, first); h.x != operand.Indices {
			copy(states, entering[first:])
		}
		if checkpoints != nil {
			states, before = nil, checkpoints[h.checkpoint(first):]
		}
		C.sw_scan_walk(&w.call, cStates(states), scanDoubles(carries[first:]), scanDoubles(before))
	})
}

// still reports that nothing wins in these lanes, as in most of a long row.
func (h *run) still(first, count int64) bool {
	return h.winning != nil && !slices.Contains(h.winning[first:first+count], true)
}

// checkpointsOf is the number of checkpoints of 32 lanes.
func checkpointsOf(n int64) int64 { return num.CeilDiv(n, C.SCAN_POSITIONS) * 2 * C.SCAN_LANES }

// checkpoint is where those of the lanes from first on begin; first is the first lane of a task.
func (h *run) checkpoint(first int64) int64 {
	return num.CeilDiv(first, C.SCAN_LANES) * checkpointsOf(h.part)
}

// begin sets the states that stand before lanes without a look at other lanes.
func (h *run) begin(w *worker, states []state, first int64) {
	for i := range states {
		states[i] = h.initial
	}
	for i := max(0, h.rows-first); h.x == operand.Indices && i < int64(len(states)); i++ {
		states[i] = h.choice(w, first, i)
	}
}

func cStates(s []state) *C.double { return (*C.double)(unsafe.Pointer(unsafe.SliceData(s))) }

// full is the number of lanes of h.part positions; those after them are as long as the rest of a row.
func (h *run) full() int64 { return h.n / h.part * h.rows }

// each hands out lanes of one length, first..first+count-1.
func (h *run) each(walk bool, body func(w *worker, first, count int64)) {
	batch := num.Clamp(cpu.Grain/h.part/C.SCAN_LANES, 1, C.SCAN_BATCH/C.SCAN_LANES) * C.SCAN_LANES
	group := batch * num.Clamp(cpu.Grain/h.part/batch, 1, fewRows) // lanes of a task
	full := h.full()
	tasks := num.CeilDiv(full, group)
	h.parallel(tasks+num.CeilDiv(h.lanes-full, group), func(w *worker, task int64) {
		first, end := task*group, full
		if task >= tasks {
			first, end = full+(task-tasks)*group, h.lanes
		}
		for end = min(end, first+group); first < end; first += batch {
			count := min(batch, end-first)
			h.hand(w, first, count, walk)
			body(w, first, count)
		}
	})
}

// hand prepares a worker for lanes of one length: the operands that the loops read and, for a walk, the one that they write.
func (h *run) hand(w *worker, first, count int64, walk bool) {
	n := h.part
	if first >= h.full() {
		n = h.n % h.part
	}
	w.call.kind, w.call.lanes, w.call.n, w.call.whole = C.int64_t(h.kind), C.int64_t(count), C.int64_t(n), 0
	if h.lanes == h.rows {
		w.call.whole = 1
	}
	if need := max(2*C.SCAN_BATCH, num.CeilDiv(count, C.SCAN_LANES)*checkpointsOf(n)); int64(len(w.checkpoints)) < need {
		w.checkpoints = make([]float64, need)
	}
	h.place(&w.call.dy, operand.Dy, first, count)
	if h.x != 0 {
		h.place(&w.call.x, h.x, first, count)
	}
	if walk {
		h.place(&w.call.dx, operand.Dx, first, count)
	}
}

func (h *run) parallel(tasks int64, body func(w *worker, task int64)) {
	threads.Run(unsafe.Pointer(h.Scan), tasks, 1, func() (*worker, func()) {
		w := workers.Get().(*worker)
		return w, func() { workers.Put(w) }
	}, body)
}

// place tells the loops where an operand of lanes first..first+count-1 lies.
func (h *run) place(to *C.scan_operand, number int, first, count int64) {
	t := &h.args[number]
	to.data, to._type, to.step, to.regular = C.uint64_t(t.Data), C.int64_t(t.DType.Row()), C.int64_t(h.steps[number]), 0
	if t.DType == tensor.Int64 {
		to._type = C.int64_t(tensor.Float64.Row()) // the loops move the bits
	}
	if v := &h.views[number]; v.Regular && (first/h.rows == (first+count-1)/h.rows) {
		to.regular, to.pitch = 1, C.int64_t(v.Step)
		to.at[0] = C.int64_t(first/h.rows*h.part*h.steps[number] + first%h.rows*v.Step)
		return
	} else if v.N == 0 || h.rows == 1 { // parts of one row
		to.regular, to.pitch, to.at[0] = 1, C.int64_t(h.part*h.steps[number]), C.int64_t(first*h.part*h.steps[number])
		return
	}
	for done := int64(0); done < count; {
		part, row := (first+done)/h.rows, (first+done)%h.rows
		n := min(count-done, h.rows-row)
		at, base := to.at[done:done+n], part*h.part*h.steps[number]
		h.views[number].VisitRuns(row, n, func(start, offset, count, step int64) {
			for i := range at[start : start+count] {
				at[start+int64(i)] = C.int64_t(base + offset + int64(i)*step)
			}
		})
		done += n
	}
}

func scanDoubles(s []float64) *C.double { return (*C.double)(unsafe.Pointer(unsafe.SliceData(s))) }
