package core

import (
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
)

const (
	uniqueCell     = 32      // rows
	uniqueSorted   = 32      // cells for each index, from which on it is less to sort the indices
	uniqueCellPart = 1 << 12 // cells of a task
	uniquePart     = 1 << 13 // positions of a task
	uniqueShare    = 1 << 15 // positions or cells that are worth a goroutine
)

// hostUnique is one run on the CPU. Its memory is kept for the next run, as that of hostBags is.
type hostUnique struct {
	*uniqueProgram
	indices *Tensor
	rows    line[int64]
	inverse line[int32]
	first   int64    // the place of the first row
	marks   []uint64 // a bit for each of 32 rows, and above them how many rows the cells before have
	parts   []int64  // of cells: how many rows; then how many come before
	pairs   []uint64 // an index and its position
}

var uniqueRuns = sync.Pool{New: func() any { return new(hostUnique) }}

func (l line[I]) set(k int64, v I) { l.in[l.start+k*l.step] = v }

func (u *uniqueProgram) host(args []Tensor) {
	h := uniqueRuns.Get().(*hostUnique)
	h.uniqueProgram, h.indices, h.first = u, &args[uniqueIndices], 0
	h.rows, h.inverse = lineOf[int64](&args[uniqueOut]), lineOf[int32](&args[uniqueInverse])
	if u.PaddingIdx != nil {
		h.first = 1
	}
	var count int64
	if ceil(u.NumRows, uniqueCell) > uniqueSorted*u.Total {
		count = h.sort()
	} else {
		count = h.mark()
	}
	for k := count; k < u.most(); k++ {
		h.rows.set(k, -1)
	}
	lineOf[int64](&args[uniqueCount]).set(0, count)
	h.uniqueProgram, h.indices, h.rows, h.inverse = nil, nil, line[int64]{}, line[int32]{}
	uniqueRuns.Put(h)
}

// each calls body for tasks of positions, with their indices.
func (h *hostUnique) each(body func(first int64, indices []uint32)) {
	withWorkers(h.Total, uniquePart, uniqueShare, func(w *bagWorker, first, end int64) {
		w.rows = sized(w.rows, end-first)
		readIntegers(w.rows, h.indices, first)
		body(first, w.rows)
	})
}

// mark sets a bit for each row that occurs; then a place is a count of bits.
func (h *hostUnique) mark() int64 {
	h.marks = sized(h.marks, ceil(h.NumRows, uniqueCell))
	marks, padding := h.marks, h.padding()
	spread(int64(len(marks)), uniqueCellPart, uniqueShare, func(first, end int64) { clear(marks[first:end]) })
	h.each(func(_ int64, indices []uint32) {
		for _, row := range indices { // a frequent row is marked once and looked at often
			cell, bit := &marks[row/uniqueCell], uint64(1)<<(row%uniqueCell)
			if atomic.LoadUint64(cell)&bit == 0 {
				atomic.OrUint64(cell, bit)
			}
		}
	})
	if padding >= 0 {
		marks[padding/uniqueCell] &^= 1 << (padding % uniqueCell)
	}
	count := h.countCells()
	h.each(func(first int64, indices []uint32) {
		for k, row := range indices {
			cell := marks[row/uniqueCell]
			place := h.first + int64(cell>>32) + int64(bits.OnesCount32(uint32(cell)&(1<<(row%uniqueCell)-1)))
			if int64(row) == padding {
				place = 0
			}
			h.inverse.set(first+int64(k), int32(place))
		}
	})
	return count
}

// countCells writes the rows that are marked, completes the cells, and returns how many rows there are.
func (h *hostUnique) countCells() (count int64) {
	n := int64(len(h.marks))
	h.parts = sized(h.parts, ceil(n, uniqueCellPart))
	spread(n, uniqueCellPart, uniqueShare, func(first, end int64) {
		sum := 0
		for _, cell := range h.marks[first:end] {
			sum += bits.OnesCount64(cell)
		}
		h.parts[first/uniqueCellPart] = int64(sum)
	})
	for k, sum := range h.parts {
		h.parts[k], count = count, count+sum
	}
	spread(n, uniqueCellPart, uniqueShare, func(first, end int64) {
		place := h.parts[first/uniqueCellPart]
		for k := first; k < end; k++ {
			left := h.marks[k]
			h.marks[k] = left | uint64(place)<<32
			for ; left != 0; left &= left - 1 {
				h.rows.set(place, k*uniqueCell+int64(bits.TrailingZeros64(left)))
				place++
			}
		}
	})
	return count
}

// sort brings equal indices together, where a look at every cell would take longer.
func (h *hostUnique) sort() (count int64) {
	h.pairs = sized(h.pairs, h.Total)
	h.each(func(first int64, indices []uint32) {
		for k, row := range indices {
			h.pairs[first+int64(k)] = uint64(row)<<32 | uint64(first+int64(k))
		}
	})
	slices.Sort(h.pairs)
	padding, before := h.padding(), int64(-1)
	for _, pair := range h.pairs {
		row, position := int64(pair>>32), int64(uint32(pair))
		switch {
		case row == padding:
			h.inverse.set(position, 0)
			continue
		case row != before:
			h.rows.set(count, row)
			count++
		}
		before = row
		h.inverse.set(position, int32(h.first+count-1))
	}
	return count
}
