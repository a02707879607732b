package core

import (
	"fmt"
	"sync"
	"sync/atomic"
)

const (
	scanBlock = 512       // positions of a row that are worked on at once, so that they stay in the first-level cache
	longRow   = 2 * 65536 // a longer row is cut into parts, so that it keeps every core busy
	scanPart  = 65536
	bundle    = 8 // neighbouring rows that are walked together where their elements share cache lines
)

// hostScan is one run of a scan on the CPU. Rows are numbered so that neighbours are neighbours in memory as well.
type hostScan struct {
	*scanProgram
	args  []Tensor
	views [4]view
	rows  int64
	n     int64
	part  int64 // positions of a part
	parts int64
	width int64 // rows of a bundle
}

// scanWorker is the scratch of one goroutine.
type scanWorker struct {
	blocks      [4]block[float64]
	w, c        [scanBlock]float64
	checkpoints []state // of each block of a part, for each row of a bundle
}

var scanWorkers = sync.Pool{New: func() any { return new(scanWorker) }}

func (s *scanProgram) host(args []Tensor) error {
	space := s.space(args)
	h := &hostScan{scanProgram: s, args: append([]Tensor{}, args...), width: 1, rows: space.size(0, space.kept), n: s.length()}
	if h.rows == 0 || h.n == 0 {
		return nil
	}
	for i := range h.args {
		if !h.args[i].present() {
			continue
		}
		if stride := &space.stride[i][space.n-1]; s.reverse {
			h.args[i].Data += uintptr(*stride * (h.n - 1) * h.args[i].DType.Size())
			*stride = -*stride
		}
		h.views[i] = space.view(i, 0, space.n, false)
		if step := magnitude(space.stride[i][space.n-1]); step != 1 && step != 0 {
			h.width = bundle
		}
	}
	if h.args[2].present() {
		return h.scatter()
	}
	h.part, h.parts = h.n, 1
	if h.n > longRow {
		h.part, h.parts = scanPart, ceil(h.n, scanPart)
	}
	h.walk()
	return nil
}

func (h *hostScan) parallel(tasks int64, body func(w *scanWorker, task int64)) {
	parallel(tasks, func() (*scanWorker, func()) {
		w := scanWorkers.Get().(*scanWorker)
		return w, func() { scanWorkers.Put(w) }
	}, body)
}

// walk does every row. With several parts: the state that enters each part, then the map that each part is, then the results.
func (h *hostScan) walk() {
	if h.parts == 1 {
		group := max(h.width, grain/max(h.n, 1)) / h.width * h.width
		entering := make([]state, 0)
		h.parallel(ceil(h.rows, group), func(w *scanWorker, task int64) {
			last := min(h.rows, (task+1)*group)
			if h.n <= scanBlock/2 {
				h.shortRows(w, task*group, last)
				return
			}
			for row := task * group; row < last; row += h.width {
				var carry [bundle]float64
				h.emit(w, row, min(last, row+h.width), 0, entering, carry[:], nil)
			}
		})
		return
	}
	bundles := ceil(h.rows, h.width)
	states := make([]state, h.rows*h.parts) // [part][row]
	maps := make([]affine, h.rows*h.parts)
	carries := make([]float64, h.rows*h.parts)
	each := func(body func(w *scanWorker, first, last, part, at int64)) {
		h.parallel(bundles*h.parts, func(w *scanWorker, task int64) {
			part, first := task/bundles, task%bundles*h.width
			body(w, first, min(h.rows, first+h.width), part, part*h.rows+first)
		})
	}
	if fold := h.recurrence.fold; fold != nil {
		each(func(w *scanWorker, first, last, part, at int64) {
			for row := first; row < last; row++ {
				states[at+row-first] = h.fold(w, row, part)
			}
		})
		h.enter(states)
	}
	each(func(w *scanWorker, first, last, part, at int64) {
		var carry [bundle]float64
		h.emit(w, first, last, part, states[at:], carry[:], maps[at:])
	})
	for part := h.parts - 2; part >= 0; part-- {
		for row := range h.rows {
			at := (part+1)*h.rows + row
			carries[at-h.rows] = h.recurrence.cross(maps[at], carries[at])
		}
	}
	each(func(w *scanWorker, first, last, part, at int64) {
		h.emit(w, first, last, part, states[at:], carries[at:at+last-first], nil)
	})
}

// enter turns the state of each part alone into the state that enters it.
func (h *hostScan) enter(states []state) {
	for row := range h.rows {
		var before state
		for part := range h.parts {
			at := part*h.rows + row
			before, states[at] = h.recurrence.combine(before, states[at], h.first), before
		}
	}
}

// fold is the state of one part of a row by itself.
func (h *hostScan) fold(w *scanWorker, row, part int64) (s state) {
	end := min(h.n, (part+1)*h.part)
	for k := part * h.part; k < end; k += scanBlock {
		s = h.recurrence.fold(s, h.load(w, 1, row*h.n+k, min(scanBlock, end-k)), h.first)
	}
	return s
}

// emit computes one part of rows first..last-1, from the states and the carries that enter it. With maps it stores nothing and
// finds what the part does to a carry.
func (h *hostScan) emit(w *scanWorker, first, last, part int64, entering []state, carry []float64, maps []affine) {
	begin, end := part*h.part, min(h.n, (part+1)*h.part)
	count, blocks := last-first, ceil(end-begin, scanBlock)
	h.checkpoint(w, first, count, begin, blocks, entering)
	for i := range maps[:min(int64(len(maps)), count)] {
		maps[i] = affine{factor: unit}
	}
	for b := blocks - 1; b >= 0; b-- {
		k := begin + b*scanBlock
		n := min(scanBlock, end-k)
		for i := range count {
			at := (first+i)*h.n + k
			if h.recurrence.fold != nil {
				h.recurrence.weights(w.checkpoints[b*count+i], h.load(w, 1, at, n), w.w[:n], w.c[:n], h.first)
			}
			dy := h.own(w, at, n)
			carry[i] = h.recurrence.suffix(carry[i], dy, w.w[:n], w.c[:n])
			if maps == nil {
				h.store(w, at, dy)
				continue
			}
			maps[i].shift = carry[i]
			if h.recurrence.fold != nil {
				for _, c := range w.c[:n] {
					maps[i].factor = maps[i].factor.timesNumber(c)
				}
			}
		}
	}
}

// checkpoint finds the state before each block of a part.
func (h *hostScan) checkpoint(w *scanWorker, first, count, begin, blocks int64, entering []state) {
	if h.recurrence.fold == nil {
		return
	}
	if need := int(blocks * count); cap(w.checkpoints) < need {
		w.checkpoints = make([]state, need)
	}
	w.checkpoints = w.checkpoints[:blocks*count]
	clear(w.checkpoints[:count])
	copy(w.checkpoints[:count], entering)
	for b := int64(1); b < blocks; b++ {
		for i := range count {
			x := h.load(w, 1, (first+i)*h.n+begin+(b-1)*scanBlock, scanBlock)
			w.checkpoints[b*count+i] = h.recurrence.fold(w.checkpoints[(b-1)*count+i], x, h.first)
		}
	}
}

// shortRows does rows of which several fit a block.
func (h *hostScan) shortRows(w *scanWorker, first, last int64) {
	group := scanBlock / h.n
	for row := first; row < last; row += group {
		n := min(group, last-row) * h.n
		var x []float64
		if h.recurrence.fold != nil {
			x = h.load(w, 1, row*h.n, n)
		}
		dy := h.own(w, row*h.n, n)
		for at := int64(0); at < n; at += h.n {
			end := at + h.n
			if x != nil {
				h.recurrence.weights(state{}, x[at:end], w.w[at:end], w.c[at:end], h.first)
			}
			h.recurrence.suffix(0, dy[at:end], w.w[at:end], w.c[at:end])
		}
		h.store(w, row*h.n, dy)
	}
}

func (h *hostScan) load(w *scanWorker, operand int, at, n int64) []float64 {
	t := &h.args[operand]
	return storages64[t.DType.row()].load(&w.blocks[operand], t, &h.views[operand], at, n)
}

// own is dy in scratch that may be overwritten.
func (h *hostScan) own(w *scanWorker, at, n int64) []float64 {
	scratch := w.blocks[3].wide[:n]
	copy(scratch, h.load(w, 0, at, n))
	return scratch
}

func (h *hostScan) store(w *scanWorker, at int64, values []float64) {
	t := &h.args[3]
	storages64[t.DType.row()].store(&w.blocks[3], t, &h.views[3], at, values)
}

// scatter adds dy at indices, after a look at all of them: nothing is written when one is out of range.
func (h *hostScan) scatter() error {
	if bad := h.firstBadIndex(); bad >= 0 {
		return refuse(InvalidProblem, "", "indices", fmt.Sprintf("between 0 and %d", h.n-1),
			fmt.Sprintf("%d at position %d of row %d", h.index(bad), bad%h.n, bad/h.n), "")
	}
	// Under reverse, indices count positions of x while the rows of this walk run backwards.
	place := func(j int64) int64 { return j }
	if h.reverse {
		place = func(j int64) int64 { return h.n - 1 - j }
	}
	group := max(1, grain/h.n)
	h.parallel(ceil(h.rows, group), func(w *scanWorker, task int64) {
		sums := make([]float64, h.n)
		var indices [scanBlock]int64
		for row := task * group; row < min(h.rows, (task+1)*group); row++ {
			clear(sums)
			for k := int64(0); k < h.n; k += scanBlock {
				n := min(scanBlock, h.n-k)
				gather(indices[:n], &h.args[2], &h.views[2], row*h.n+k)
				for i, g := range h.load(w, 0, row*h.n+k, n) {
					sums[place(indices[i])] += g
				}
			}
			for k := int64(0); k < h.n; k += scanBlock {
				h.store(w, row*h.n+k, sums[k:min(h.n, k+scanBlock)])
			}
		}
	})
	return nil
}

func (h *hostScan) index(at int64) int64 {
	var value [1]int64
	gather(value[:], &h.args[2], &h.views[2], at)
	return value[0]
}

// firstBadIndex is the first element whose index is out of range, or -1.
func (h *hostScan) firstBadIndex() int64 {
	total := h.rows * h.n
	first := atomic.Int64{}
	first.Store(total)
	h.parallel(ceil(total, grain), func(_ *scanWorker, task int64) {
		var indices [scanBlock]int64
		for at := task * grain; at < min(total, (task+1)*grain, first.Load()); at += scanBlock {
			n := min(scanBlock, total-at)
			gather(indices[:n], &h.args[2], &h.views[2], at)
			for i, j := range indices[:n] {
				for now := first.Load(); (j < 0 || j >= h.n) && at+int64(i) < now; now = first.Load() {
					first.CompareAndSwap(now, at+int64(i))
				}
			}
		}
	})
	if bad := first.Load(); bad < total {
		return bad
	}
	return -1
}
