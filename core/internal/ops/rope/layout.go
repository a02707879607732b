package rope

import (
	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file describes the memory layout of the operands. All strides are in elements.

// rowLayout is the layout of an input or its output: the strides of batch, head, token and element.
type rowLayout struct {
	data                     uintptr
	batch, head, token, step int64
}

func (p *Program) rowsOf(t *tensor.Tensor) rowLayout {
	r, s := rowLayout{data: t.Data}, &t.Strides
	switch p.Layout {
	case "bhsd":
		r.batch, r.head, r.token, r.step = s[0], s[1], s[2], s[3]
	case "bshd":
		r.batch, r.token, r.head, r.step = s[0], s[1], s[2], s[3]
	case "thd":
		r.token, r.head, r.step = s[0], s[1], s[2]
	}
	return r
}

// rotation is an input with its output.
type rotation struct {
	input, output int // indices of the operands
	heads         int64
	in, out       rowLayout
}

// rotations are the pairs of a run: x and y, then x_k and y_k.
func (p *Program) rotations(args []tensor.Tensor) (list [2]rotation, n int) {
	first := len(args) - 1
	if p.NumKeyHeads != nil {
		first--
		list[1] = rotation{input: xK, output: len(args) - 1, heads: *p.NumKeyHeads}
		n = 1
	}
	list[0] = rotation{input: X, output: first, heads: p.NumHeads}
	for i := range n + 1 {
		list[i].in, list[i].out = p.rowsOf(&args[list[i].input]), p.rowsOf(&args[list[i].output])
	}
	return list, n + 1
}

// positionLayout reads positions: [S], [1, S] or [B, S].
type positionLayout struct {
	tensor       *tensor.Tensor // nil: positions are 0, 1, ...
	batches      int64          // 0: all batches share positions
	batch, token int64
}

func positionsOf(t *tensor.Tensor) positionLayout {
	if !t.Given() {
		return positionLayout{}
	}
	at := positionLayout{tensor: t, token: t.Strides[t.NDim-1]}
	if t.NDim == 2 && t.Shape[0] > 1 && t.Strides[0] != 0 {
		at.batches, at.batch = t.Shape[0], t.Strides[0]
	}
	return at
}

func (at *positionLayout) position(b, s int64) int64 {
	if at.tensor == nil {
		return s
	}
	offset := b*at.batch + s*at.token
	if at.tensor.DType == tensor.Int32 {
		return int64(cpu.Elements[int32](at.tensor, offset, 1, 1)[0])
	}
	return cpu.Elements[int64](at.tensor, offset, 1, 1)[0]
}

// tableLayout is cos or sin: [P, columns], [1, P, columns] or [B, P, columns].
type tableLayout struct {
	data               uintptr
	dtype              tensor.DType
	batches            int64 // 0: all batches share the table
	batch, row, column int64
}

func tableOf(t *tensor.Tensor) tableLayout {
	last := t.NDim - 1
	at := tableLayout{data: t.Data, dtype: t.DType, row: t.Strides[last-1], column: t.Strides[last]}
	if t.NDim == 3 && t.Shape[0] > 1 && t.Strides[0] != 0 {
		at.batches, at.batch = t.Shape[0], t.Strides[0]
	}
	return at
}

// tableColumns are the distances in columns of a table from one pair to the next, and from the
// first member of a pair to the second; 0 if both members share a column.
func (p *Program) tableColumns(table *tensor.Tensor) (pairStride, partnerOffset int64) {
	switch {
	case table.Shape[table.NDim-1] == p.pairs:
		return 1, 0
	case p.Pairing == "half":
		return 1, p.pairs
	}
	return 2, 1
}

// anglesDiffer reports whether batches have different angles.
func (p *Program) anglesDiffer(args []tensor.Tensor) bool {
	at := positionsOf(&args[Positions])
	differ := at.batches > 0
	if p.hasTables(args) {
		differ = differ || tableOf(&args[Cos]).batches > 0 || tableOf(&args[Sin]).batches > 0
	}
	return differ
}

// rowColumns are the distances in elements of a row from one pair to the next, and from the first
// member of a pair to the second.
func (p *Program) rowColumns() (pairStride, partnerOffset int64) {
	if p.Pairing == "half" {
		return 1, p.pairs
	}
	return 2, 1
}

// isEmpty reports whether the operands have no elements.
func (p *Program) isEmpty() bool { return p.BatchSize == 0 || p.SeqLen == 0 || p.HeadDim == 0 }
