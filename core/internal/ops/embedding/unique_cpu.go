package embedding

import (
	"math/bits"
	"sync/atomic"

	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file finds unique rows on the CPU: by a bitmap of all rows, or by sorting the indices.

const (
	uniqueSortWords = 32      // words per index from which on sorting the indices is faster than scanning all words
	uniqueTaskWords = 1 << 12 // words of a task
	uniquePart      = 1 << 13 // positions of a task
	uniqueGrain     = 1 << 15 // grain size in positions or words
)

// hostUnique is one run on the CPU; P is the type of inverse. Pools keep its memory between runs.
// Word k of the bitmap has one bit for each row, and in the upper bits the number of distinct rows
// in earlier words.
type hostUnique[N number, P int32 | int64] struct {
	d       *UniqueRows
	indices *tensor.Tensor
	rows    stridedVec[int64]
	inverse stridedVec[P]
	first   int64        // place of the first row: 1 with PaddingIdx, otherwise 0
	bitmap  []uint64     // one bit for each row, if rows are marked in a bitmap
	counts  []int64      // distinct rows per task of words; then their exclusive prefix sum
	pairs   []indexAt[N] // indices with positions, if indices are sorted
	scratch []indexAt[N] // second buffer of the sort
}

// indexAt is an index and its position.
type indexAt[N number] struct{ row, position N }

// rowsPerWord is the number of row bits of a word: 32, or 16 with 64-bit counts. The remaining 32
// or 48 bits hold the number of earlier rows.
func rowsPerWord[N number]() N { return N(32 / (bitsOf[N]() / 32)) }

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
	if num.CeilDiv(h.d.NumRows, int64(rowsPerWord[N]())) > uniqueSortWords*h.d.Total {
		count = h.sort()
	} else {
		count = h.setBits()
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

// setBits finds the distinct rows with a bit set: it sets a bit per row that occurs, and a place is
// a count of bits.
func (h *hostUnique[N, P]) setBits() int64 {
	h.bitmap = grow(h.bitmap, num.CeilDiv(h.d.NumRows, int64(rowsPerWord[N]())))
	bitmap, padding := h.bitmap, h.d.Padding()
	parallelFor(int64(len(bitmap)), uniqueTaskWords, uniqueGrain, func(first, end int64) { clear(bitmap[first:end]) })
	h.each(func(_ int64, indices []N) {
		size := rowsPerWord[N]()
		for _, row := range indices { // a plain load avoids most of the atomic writes
			word, bit := &bitmap[row/size], uint64(1)<<(row%size)
			if atomic.LoadUint64(word)&bit == 0 {
				atomic.OrUint64(word, bit)
			}
		}
	})
	if padding >= 0 {
		size := rowsPerWord[N]()
		bitmap[N(padding)/size] &^= 1 << (N(padding) % size)
	}
	count := h.countWords()
	h.each(func(first int64, indices []N) {
		size, inverse, start := rowsPerWord[N](), h.inverse, h.first
		for k, row := range indices {
			word := bitmap[row/size]
			place := start + int64(word>>size) + int64(bits.OnesCount32(uint32(word)&(1<<(row%size)-1)))
			if int64(row) == padding {
				place = 0
			}
			inverse.set(first+int64(k), P(place))
		}
	})
	return count
}

// countWords writes the rows whose bit is set, adds the prefix counts to the words, and returns the
// number of rows.
func (h *hostUnique[N, P]) countWords() (count int64) {
	n := int64(len(h.bitmap))
	h.counts = grow(h.counts, num.CeilDiv(n, uniqueTaskWords))
	parallelFor(n, uniqueTaskWords, uniqueGrain, func(first, end int64) {
		sum := 0
		for _, word := range h.bitmap[first:end] {
			sum += bits.OnesCount64(word)
		}
		h.counts[first/uniqueTaskWords] = int64(sum)
	})
	for k, sum := range h.counts {
		h.counts[k], count = count, count+sum
	}
	parallelFor(n, uniqueTaskWords, uniqueGrain, func(first, end int64) {
		place := h.counts[first/uniqueTaskWords]
		for k := first; k < end; k++ {
			left := h.bitmap[k]
			h.bitmap[k] = left | uint64(place)<<rowsPerWord[N]()
			for ; left != 0; left &= left - 1 {
				h.rows.set(place, k*int64(rowsPerWord[N]())+int64(bits.TrailingZeros64(left)))
				place++
			}
		}
	})
	return count
}

// sort finds the distinct rows by a radix sort of the indices.
func (h *hostUnique[N, P]) sort() (count int64) {
	h.pairs, h.scratch = grow(h.pairs, h.d.Total), grow(h.scratch, h.d.Total)
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
			h.scratch[*at] = pair
			*at++
		}
		h.pairs, h.scratch = h.scratch, h.pairs
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
