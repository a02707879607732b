package embedding

import (
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file launches the kernel of embedding bags forward.

// Symbols implements ops.Program. One table and many have the same kernels.
func (p *ForwardProgram) Symbols() []launch.Symbol {
	name := bagForward.Name + "_sum_"
	if p.mode == "max" {
		name = bagForward.Name + "_max_"
	}
	return []launch.Symbol{{Image: bagForward.Image, Name: name + p.dtype.Suffix()}}
}

// Device implements ops.Program: one launch, whose CTAs are divided evenly among the tables. Each
// CTA of the widest table has as many bags as it has groups of threads; in a narrower table a group
// has fewer threads, and the last CTAs have nothing to do.
func (p *ForwardProgram) Device(args []tensor.Tensor, _ uintptr, q *launch.Queue) error {
	all := p.argsOf(args)
	y := &all[forwardY]
	if y.Empty() {
		return nil
	}
	q.Begin()
	a := launch.Append[BagForwardArgs](q)
	p.setOperands(a, all[:], q)
	v, wide := 16/p.dtype.Size(), p.isWide(all[:])
	if !wide {
		v = 1
	}
	vectors := num.CeilDiv(p.widest, v)
	lanes := max(ForwardFlight, min(32, num.Pow2(vectors)))
	a.blocks = num.CeilDiv(p.bags*lanes, launch.BlockThreads) * num.CeilDiv(vectors, lanes)
	a.rows, a.columns, a.bags, a.total, a.padding = p.rows, p.widest, p.bags, p.total, p.padding
	a.last, a.mean, a.wide = flagWord(p.hasLastOffset), flagWord(p.mode == "mean"), flagWord(wide)
	return q.Submit(0, p.tables*a.blocks, launch.BlockThreads)
}

// isWide reports whether 16-byte accesses suit weight and y.
func (p *ForwardProgram) isWide(args []tensor.Tensor) bool {
	weight, y, v := &args[forwardWeight], &args[forwardY], 16/p.dtype.Size()
	if !args[forwardTables].Given() {
		return p.widest%v == 0 && alignedRows(weight, v) && alignedRows(y, v)
	}
	return p.isAligned && weight.Data%16 == 0 && alignedRows(y, v)
}

// setOperands stores the addresses of the operands, their strides, and the element width of those
// of several dtypes.
func (p *ForwardProgram) setOperands(a *BagForwardArgs, args []tensor.Tensor, q *launch.Queue) {
	for i, field := range [numForwardOperands]*launch.Address{
		&a.weight, &a.indices, &a.offsets, &a.tables, &a.sampleWeights, &a.y, &a.maxIndices,
	} {
		if number := p.operands[i]; number != noOperand {
			q.SetAddress(field, number, args[i].Data)
		}
	}
	matrix := func(i int, row, column *int64) { *row, *column = args[i].Strides[0], args[i].Strides[1] }
	matrix(forwardWeight, &a.weightRow, &a.weightColumn)
	matrix(forwardY, &a.yRow, &a.yColumn)
	matrix(forwardMaxIndices, &a.maxRow, &a.maxColumn)
	a.indexStep, a.indexWide = args[forwardIndices].Strides[0], args[forwardIndices].DType.Size()/8
	a.offsetStep, a.offsetWide = args[forwardOffsets].Strides[0], args[forwardOffsets].DType.Size()/8
	a.sampleWeightStep, a.sampleWeightSingle = args[forwardSampleWeights].Strides[0], flagWord(args[forwardSampleWeights].DType == tensor.Float32)
	argmax := &args[forwardMaxIndices]
	a.maxWide, a.maxVector = argmax.DType.Size()/8, flagWord(argmax.Given() && alignedRows(argmax, 16/argmax.DType.Size()))
}
