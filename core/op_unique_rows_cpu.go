package core

import (
	"math/bits"
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
	d       *UniqueRows
	indices *Tensor
	rows    line[int64]
	inverse line[int32]
	first   int64    // the place of the first row
	marks   []uint64 // a bit for each of 32 rows, and above them how many rows the cells before have
	parts   []int64  // of cells: how many rows; then how many come before
	pairs   []uint64 // instead of them: an index and its position
	room    []uint64 // for as many
}

var uniqueRuns = sync.Pool{New: func() any { return new(hostUnique) }}

func (l line[I]) set(k int64, v I) { l.in[l.start+k*l.step] = v }

func (u *uniqueProgram) host(args []Tensor) {
	h := uniqueRuns.Get().(*hostUnique)
	h.d, h.indices, h.first = &u.d, &args[uniqueIndices], 0
	h.rows, h.inverse = lineOf[int64](&args[uniqueOut]), lineOf[int32](&args[uniqueInverse])
	if h.d.PaddingIdx != nil {
		h.first = 1
	}
	var count int64
	if ceil(h.d.NumRows, uniqueCell) > uniqueSorted*h.d.Total {
		count = h.sort()
	} else {
		count = h.mark()
	}
	for k := count; k < h.d.most(); k++ {
		h.rows.set(k, -1)
	}
	lineOf[int64](&args[uniqueCount]).set(0, count)
	h.d, h.indices, h.rows, h.inverse = nil, nil, line[int64]{}, line[int32]{}
	uniqueRuns.Put(h)
}

// each calls body for tasks of positions, with their indices.
func (h *hostUnique) each(body func(first int64, indices []uint32)) {
	withWorkers(h.d.Total, uniquePart, uniqueShare, func(w *bagWorker, first, end int64) {
		w.rows = sized(w.rows, end-first)
		readIntegers(w.rows, h.indices, first)
		body(first, w.rows)
	})
}

// mark sets a bit for each row that occurs; then a place is a count of bits.
func (h *hostUnique) mark() int64 {
	h.marks = sized(h.marks, ceil(h.d.NumRows, uniqueCell))
	marks, padding := h.marks, h.d.padding()
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
	h.pairs, h.room = sized(h.pairs, h.d.Total), sized(h.room, h.d.Total)
	h.each(func(first int64, indices []uint32) {
		for k, row := range indices {
			h.pairs[first+int64(k)] = uint64(row)<<32 | uint64(first+int64(k))
		}
	})
	for shift := 32; h.d.NumRows>>(shift-32) > 0; shift += 8 { // digit by digit, least first
		var next [256]uint32
		for _, pair := range h.pairs {
			next[uint8(pair>>shift)]++
		}
		sum := uint32(0)
		for digit, n := range next {
			next[digit], sum = sum, sum+n
		}
		for _, pair := range h.pairs {
			at := &next[uint8(pair>>shift)]
			h.room[*at] = pair
			*at++
		}
		h.pairs, h.room = h.room, h.pairs
	}
	padding, before := h.d.padding(), int64(-1)
	for _, pair := range h.pairs {
		row, position := int64(pair>>32), int64(uint32(pair))
		place := h.first + count
		switch row {
		case padding:
			place = 0
		case before:
			place--
		default:
			h.rows.set(count, row)
			before = row
			count++
		}
		h.inverse.set(position, int32(place))
	}
	return count
}
