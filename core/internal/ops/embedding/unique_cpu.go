package embedding

import (
	"math/bits"
	"sync/atomic"

	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/tensor"
)

const (
	uniqueSortCells = 32      // cells per index from which on sorting the indices is faster than scanning all cells
	uniqueCellPart  = 1 << 12 // cells of a task
	uniquePart      = 1 << 13 // positions of a task
	uniqueGrain     = 1 << 15 // grain size in positions or cells
)

// hostUnique is one run on the CPU; P is the type of inverse. Pools keep its memory between runs. A cell is a word of
// marks: one bit per row, and in the upper bits the number of distinct rows in earlier cells.
type hostUnique[N number, P int32 | int64] struct {
	d       *UniqueRows
	indices *tensor.Tensor
	rows    stridedVec[int64]
	inverse stridedVec[P]
	first   int64        // place of the first row: 1 with PaddingIdx, otherwise 0
	marks   []uint64     // cells, if rows are marked
	parts   []int64      // distinct rows per part of cells; then their exclusive prefix sum
	pairs   []indexAt[N] // indices with positions, if indices are sorted
	room    []indexAt[N] // second buffer of the sort
}

// indexAt is an index and its position.
type indexAt[N number] struct{ row, position N }

// rowsPerCell is the number of mark bits of a cell: 32, or 16 with 64-bit counts. The remaining 32 or 48 bits hold the
// number of earlier rows.
func rowsPerCell[N number]() N { return N(32 / (bitsOf[N]() / 32)) }

// Host implements ops.Program.
func (u *UniqueProgram) Host(args []tensor.Tensor) {
	if u.D.InverseDType() == tensor.Int64 {
		runUnique[uint64, int64](u, args)
	} else {
		runUnique[uint32, int32](u, args)
	}
}

func runUnique[N number, P int32 | int64](u *UniqueProgram, args []tensor.Tensor) {
	pool := &bagPools[bitsOf[N]()/64].unique
	h := fromPool[hostUnique[N, P]](pool)
	h.d, h.indices, h.first = &u.D, &args[UniqueIndices], 0
	h.rows, h.inverse = stridedOf[int64](&args[uniqueOut]), stridedOf[P](&args[uniqueInverse])
	if h.d.PaddingIdx != nil {
		h.first = 1
	}
	var count int64
	if num.CeilDiv(h.d.NumRows, int64(rowsPerCell[N]())) > uniqueSortCells*h.d.Total {
		count = h.sort()
	} else {
		count = h.mark()
	}
	for k := count; k < h.d.MaxRows(); k++ {
		h.rows.set(k, -1)
	}
	stridedOf[int64](&args[uniqueCount]).set(0, count)
	h.d, h.indices, h.rows, h.inverse = nil, nil, stridedVec[int64]{}, stridedVec[P]{}
	pool.Put(h)
}

// each calls body for ranges of positions with their indices.
func (h *hostUnique[N, P]) each(body func(first int64, indices []N)) {
	parallelForWorkers(h.d.Total, uniquePart, uniqueGrain, func(w *bagWorker[N], first, end int64) {
		w.rows = grow(w.rows, end-first)
		readIntegers(w.rows, h.indices, first)
		body(first, w.rows)
	})
}

// mark finds the distinct rows with a bit set: it sets a bit per row that occurs, and a place is a count of bits.
func (h *hostUnique[N, P]) mark() int64 {
	h.marks = grow(h.marks, num.CeilDiv(h.d.NumRows, int64(rowsPerCell[N]())))
	marks, padding := h.marks, h.d.Padding()
	parallelFor(int64(len(marks)), uniqueCellPart, uniqueGrain, func(first, end int64) { clear(marks[first:end]) })
	h.each(func(_ int64, indices []N) {
		size := rowsPerCell[N]()
		for _, row := range indices { // a plain load avoids most of the atomic writes
			cell, bit := &marks[row/size], uint64(1)<<(row%size)
			if atomic.LoadUint64(cell)&bit == 0 {
				atomic.OrUint64(cell, bit)
			}
		}
	})
	if padding >= 0 {
		size := rowsPerCell[N]()
		marks[N(padding)/size] &^= 1 << (N(padding) % size)
	}
	count := h.countCells()
	h.each(func(first int64, indices []N) {
		size, inverse, start := rowsPerCell[N](), h.inverse, h.first
		for k, row := range indices {
			cell := marks[row/size]
			place := start + int64(cell>>size) + int64(bits.OnesCount32(uint32(cell)&(1<<(row%size)-1)))
			if int64(row) == padding {
				place = 0
			}
			inverse.set(first+int64(k), P(place))
		}
	})
	return count
}

// countCells writes the marked rows, adds the prefix counts to the cells, and returns the number of rows.
func (h *hostUnique[N, P]) countCells() (count int64) {
	n := int64(len(h.marks))
	h.parts = grow(h.parts, num.CeilDiv(n, uniqueCellPart))
	parallelFor(n, uniqueCellPart, uniqueGrain, func(first, end int64) {
		sum := 0
		for _, cell := range h.marks[first:end] {
			sum += bits.OnesCount64(cell)
		}
		h.parts[first/uniqueCellPart] = int64(sum)
	})
	for k, sum := range h.parts {
		h.parts[k], count = count, count+sum
	}
	parallelFor(n, uniqueCellPart, uniqueGrain, func(first, end int64) {
		place := h.parts[first/uniqueCellPart]
		for k := first; k < end; k++ {
			left := h.marks[k]
			h.marks[k] = left | uint64(place)<<rowsPerCell[N]()
			for ; left != 0; left &= left - 1 {
				h.rows.set(place, k*int64(rowsPerCell[N]())+int64(bits.TrailingZeros64(left)))
				place++
			}
		}
	})
	return count
}

// sort finds the distinct rows by a radix sort of the indices.
func (h *hostUnique[N, P]) sort() (count int64) {
	h.pairs, h.room = grow(h.pairs, h.d.Total), grow(h.room, h.d.Total)
	h.each(func(first int64, indices []N) {
		for k, row := range indices {
			h.pairs[first+int64(k)] = indexAt[N]{row, N(first + int64(k))}
		}
	})
	for shift := 0; h.d.NumRows>>shift > 0; shift += 8 { // least significant digit first
		var next [256]N
		for _, pair := range h.pairs {
			next[uint8(pair.row>>shift)]++
		}
		sum := N(0)
		for digit, n := range next {
			next[digit], sum = sum, sum+n
		}
		for _, pair := range h.pairs {
			at := &next[uint8(pair.row>>shift)]
			h.room[*at] = pair
			*at++
		}
		h.pairs, h.room = h.room, h.pairs
	}
	padding, before := h.d.Padding(), int64(-1)
	for _, pair := range h.pairs {
		row, position := int64(pair.row), int64(pair.position)
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
		h.inverse.set(position, P(place))
	}
	return count
}
