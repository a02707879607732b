package rope

/*
#cgo CFLAGS: -O2
#include "rope.h"
*/
import "C"

import (
	"math"
	"sync"
	"unsafe"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/sternway/sternway/core/internal/threads"
)

// This file rotates on the CPU.

// A task is a tile of tokens and pairs, over rows (heads of batches) that share its angles. The
// factors of a tile are computed once per task.
const (
	tileFactors = 2048 // tokens times pairs of a tile
	rowsPerTask = 64
)

// worker is the scratch of one goroutine.
type worker[A cpu.Accumulator] struct {
	factors   [4][tileFactors]A
	positions [tileFactors]int64
}

var (
	workers32 = sync.Pool{New: func() any { return new(worker[float32]) }}
	workers64 = sync.Pool{New: func() any { return new(worker[float64]) }}
)

// Host implements ops.Program.
func (p *Program) Host(args []tensor.Tensor) {
	if p.isEmpty() {
		return
	}
	if p.DType == tensor.Float64 {
		runHost[float64](p, args, &workers64)
	} else {
		runHost[float32](p, args, &workers32)
	}
}

// hostRun is one run on the CPU.
type hostRun[A cpu.Accumulator] struct {
	*Program
	args                        []tensor.Tensor
	positions                   positionLayout
	cos, sin                    tableLayout
	rotations                   [2]rotation
	n                           int   // number of rotations
	batches                     int64 // number of batches that share angles
	rows                        int64 // of a tile
	tokensPerTile, pairsPerTile int64
	rowTasks                    int64 // tasks that share the rows of a tile
	tilesOfPairs, tilesOfTokens int64
}

func runHost[A cpu.Accumulator](p *Program, args []tensor.Tensor, pool *sync.Pool) {
	h := hostRunOf[A](p, args)
	work := h.tokensPerTile * (2*h.pairsPerTile + (p.HeadDim-2*p.pairs)/h.tilesOfPairs) * min(h.rows, rowsPerTask) // elements per task
	start := func() (*worker[A], func()) {
		w := pool.Get().(*worker[A])
		return w, func() { pool.Put(w) }
	}
	threads.Run(unsafe.Pointer(p), h.tasks(), num.CeilDiv(cpu.Grain, max(work, 1)), start, func(w *worker[A], task int64) {
		run := task % h.rowTasks
		task /= h.rowTasks
		pair := task % h.tilesOfPairs * h.pairsPerTile
		task /= h.tilesOfPairs
		token := task % h.tilesOfTokens * h.tokensPerTile
		tile := tile{task / h.tilesOfTokens, token, min(h.tokensPerTile, p.SeqLen-token), pair, min(h.pairsPerTile, p.pairs-pair)}
		h.makeFactors(w, &tile)
		h.rotateRows(w, &tile, run*rowsPerTask, min(h.rows, (run+1)*rowsPerTask))
	})
}

// hostRunOf divides a run into tiles.
func hostRunOf[A cpu.Accumulator](p *Program, args []tensor.Tensor) hostRun[A] {
	h := hostRun[A]{Program: p, args: args, positions: positionsOf(&args[Positions]), batches: p.BatchSize}
	h.rotations, h.n = p.rotations(args)
	if p.hasTables(args) {
		h.cos, h.sin = tableOf(&args[Cos]), tableOf(&args[Sin])
	}
	if p.anglesDiffer(args) {
		h.batches = 1
	}
	h.pairsPerTile = min(max(p.pairs, 1), tileFactors)
	for _, r := range h.rotations[:h.n] {
		h.rows += h.batches * r.heads
	}
	some := max(num.CeilDiv(p.SeqLen, 8), num.CeilDiv(cpu.Grain/4, p.HeadDim*max(min(h.rows, rowsPerTask), 1))) // several tasks for short sequences
	h.tokensPerTile = min(tileFactors/h.pairsPerTile, p.SeqLen, some)
	h.rowTasks = num.CeilDiv(h.rows, rowsPerTask)
	h.tilesOfPairs, h.tilesOfTokens = num.CeilDiv(max(p.pairs, 1), h.pairsPerTile), num.CeilDiv(p.SeqLen, h.tokensPerTile)
	return h
}

// tasks is the number of tasks: a batch of those whose angles differ, a tile, and a part of its
// rows.
func (h *hostRun[A]) tasks() int64 {
	return h.BatchSize / h.batches * h.tilesOfTokens * h.tilesOfPairs * h.rowTasks
}

// Tasks implements ops.Program.
func (p *Program) Tasks(args []tensor.Tensor) int64 {
	if p.isEmpty() {
		return 0
	}
	h := hostRunOf[float32](p, args)
	return h.tasks()
}

// tile is a tile: the first batch, tokens and pairs.
type tile struct{ batch, token, tokens, pair, pairs int64 }

func (w *worker[A]) addresses() (list [4]C.uintptr_t) {
	for k := range w.factors {
		list[k] = C.uintptr_t(uintptr(unsafe.Pointer(&w.factors[k])))
	}
	return list
}

// makeFactors computes the factors a, b, c and d of rope.h for each token and pair of a tile.
func (h *hostRun[A]) makeFactors(w *worker[A], tile *tile) {
	furthest := 0.0
	for t := range tile.tokens {
		w.positions[t] = h.positions.position(tile.batch, tile.token+t)
		furthest = max(furthest, math.Abs(float64(w.positions[t])))
	}
	f := C.sw_rope_factors{factor: w.addresses(), position: C.uintptr_t(uintptr(unsafe.Pointer(&w.positions))),
		tokens: C.long(tile.tokens), pairs: C.long(tile.pairs)}
	if h.Angle == "float32" {
		f.single = 1
	}
	if h.isForward {
		f.forward = 1
	}
	switch {
	case tile.pairs == 0:
		return
	case h.hasTables(h.args):
		pairStride, partnerOffset := h.tableColumns(&h.args[Cos])
		f.pair_stride, f.partner_offset = C.long(pairStride), C.long(partnerOffset)
		f.cos, f.sin = h.cos.c(tile, pairStride), h.sin.c(tile, pairStride)
	case furthest*h.fastest >= C.ROPE_LARGEST:
		h.makeExactFactors(w, tile)
		return
	default:
		f.frequency = C.uintptr_t(uintptr(unsafe.Pointer(&h.Frequency[tile.pair])))
	}
	if h.DType == tensor.Float64 {
		C.sw_rope_factors_f64(&f)
	} else {
		C.sw_rope_factors_f32(&f)
	}
}

// c is the table from the first pair of a tile on.
func (t *tableLayout) c(tile *tile, pairStride int64) C.sw_rope_table {
	data := t.data + uintptr((tile.batch*t.batch+tile.pair*pairStride*t.column)*t.dtype.Size())
	return C.sw_rope_table{data: C.uintptr_t(data), dtype: C.long(t.dtype.Row()), row: C.long(t.row), column: C.long(t.column)}
}

// makeExactFactors computes factors from angles of any size, with the argument reduction of package
// math.
func (h *hostRun[A]) makeExactFactors(w *worker[A], tile *tile) {
	for t := range tile.tokens {
		for i, frequency := range h.Frequency[tile.pair : tile.pair+tile.pairs] {
			angle := float64(w.positions[t]) * frequency
			if h.Angle == "float32" {
				angle = float64(float32(w.positions[t]) * float32(frequency))
			}
			sine, cosine := math.Sincos(angle)
			if h.isForward {
				sine = -sine
			}
			at := t*tile.pairs + int64(i)
			w.factors[0][at], w.factors[1][at], w.factors[2][at], w.factors[3][at] = A(cosine), A(sine), A(cosine), A(-sine)
		}
	}
}

// rotateRows rotates the rows from..to-1. Rows are numbered over the heads of each batch of x, then
// over the heads of each batch of x_k.
func (h *hostRun[A]) rotateRows(w *worker[A], tile *tile, from, to int64) {
	for i := range h.rotations[:h.n] {
		r := &h.rotations[i]
		n := h.batches * r.heads
		for row := max(from, 0); row < min(to, n); {
			head := row % r.heads
			count := min(r.heads-head, min(to, n)-row)
			h.rotateHeads(w, tile, r, tile.batch+row/r.heads, head, count)
			row += count
		}
		from, to = from-n, to-n
	}
}

// rotateHeads rotates a tile in count heads of one batch.
func (h *hostRun[A]) rotateHeads(w *worker[A], tile *tile, r *rotation, batch, head, count int64) {
	pairStride, partnerOffset := h.rowColumns()
	size := h.DType.Size()
	place := func(rows *rowLayout) C.uintptr_t {
		return C.uintptr_t(rows.data + uintptr((batch*rows.batch+head*rows.head+tile.token*rows.token)*size))
	}
	c := C.sw_rope_rows{in: place(&r.in), out: place(&r.out), factor: w.addresses(),
		outer: C.long(count), in_outer: C.long(r.in.head), out_outer: C.long(r.out.head),
		inner: C.long(tile.tokens), in_inner: C.long(r.in.token), out_inner: C.long(r.out.token), factor_inner: C.long(tile.pairs),
		in_step: C.long(r.in.step), out_step: C.long(r.out.step),
		first: C.long(h.RotaryStart + tile.pair*pairStride), pairs: C.long(tile.pairs), pair_stride: C.long(pairStride), partner_offset: C.long(partnerOffset)}
	if tile.pair == 0 {
		end := h.RotaryStart + 2*h.pairs
		c.copied = [2][2]C.long{{0, C.long(h.RotaryStart)}, {C.long(end), C.long(h.HeadDim - end)}}
	}
	whole := partnerOffset == 1 && 2*tile.pairs == h.HeadDim && r.in.step == 1 && r.out.step == 1
	switch {
	case whole && r.in.token == h.HeadDim && r.out.token == h.HeadDim: // the tokens are one long row
		c.pairs *= c.inner
		c.inner = 1
	case num.Abs(r.out.head) < num.Abs(r.out.token): // heads lie beside each other
		c.outer, c.inner = c.inner, c.outer
		c.in_outer, c.in_inner = c.in_inner, c.in_outer
		c.out_outer, c.out_inner = c.out_inner, c.out_outer
		c.factor_outer, c.factor_inner = c.factor_inner, c.factor_outer
	}
	C.sw_rope_rows_of(C.long(h.DType.Row()), &c)
}
