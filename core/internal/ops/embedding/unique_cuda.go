package embedding

import (
	"math/bits"

	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file launches the kernel of unique rows, stage by stage.

const (
	UniqueGroup      = 32      // words of 32 rows
	uniqueSingle     = 1 << 13 // largest number of positions for the single launch
	uniqueSingleRows = 1 << 17 // largest number of rows for the single launch
)

// Stages of the kernel.
const (
	uniqueClear = iota
	uniqueSetBits
	uniqueCountGroups
	uniqueWrite
	uniquePlace
	UniqueStages
)

// Symbols implements ops.Program.
func (u *UniqueProgram) Symbols() []launch.Symbol {
	return []launch.Symbol{{Image: uniqueRows.Image, Name: uniqueRows.Name}}
}

// uniqueLayout is the layout of the workspace: the number of words, and the offsets in bytes of the
// totals of 2^Shift groups of words and of the counts of groups.
type uniqueLayout struct {
	Words, Shift, Totals, Counts, size int64
}

// Layout is the layout of the workspace.
func (u *UniqueProgram) Layout() (l uniqueLayout) {
	rows := u.D.NumRows
	if u.D.Total == 0 {
		rows = 0
	}
	l.Words = max(1, num.CeilDiv(rows, 32*UniqueBlock)) * UniqueBlock
	groups := l.Words / UniqueGroup
	l.Shift = int64(bits.Len64(uint64(groups))) / 2 // about as many totals as counts per total
	l.Totals = l.Words * 8
	l.Counts = l.Totals + num.CeilDiv(num.CeilDiv(groups, 1<<l.Shift)*4, launch.WorkspaceAlignment)*launch.WorkspaceAlignment
	l.size = l.Counts + groups*4
	return l
}

// Workspace implements ops.Program.
func (u *UniqueProgram) Workspace() int64 {
	if !u.cuda {
		return 0
	}
	return u.Layout().size
}

// Device implements ops.Program.
func (u *UniqueProgram) Device(args []tensor.Tensor, workspace uintptr, q *launch.Queue) error {
	if u.single {
		return u.launch(q, args, workspace, uniqueClear, UniqueStages, 1, UniqueBlock)
	}
	l := u.Layout()
	for stage, row := range []struct{ grid, block int64 }{
		uniqueClear:       {num.CeilDiv(l.Counts/16, launch.BlockThreads), launch.BlockThreads},
		uniqueSetBits:     {min(num.CeilDiv(u.D.Total, launch.BlockThreads), int64(u.numSMs)), launch.BlockThreads}, // more blocks would contend for the bits
		uniqueCountGroups: {l.Words / launch.BlockThreads, launch.BlockThreads},
		uniqueWrite:       {l.Words / launch.BlockThreads, launch.BlockThreads},
		uniquePlace:       {max(1, num.CeilDiv(u.D.Total, launch.BlockThreads)), launch.BlockThreads},
	} {
		if err := u.launch(q, args, workspace, stage, stage+1, row.grid, uint32(row.block)); err != nil {
			return err
		}
	}
	return nil
}

// launch runs the stages first..end-1 in one launch.
func (u *UniqueProgram) launch(q *launch.Queue, args []tensor.Tensor, workspace uintptr, first, end int, grid int64, block uint32) error {
	q.Begin()
	a, l := launch.Append[UniqueArgs](q), u.Layout()
	set := func(i int, field *launch.Address, step *int64) {
		q.SetAddress(field, i, args[i].Data)
		*step = args[i].Strides[0] * args[i].DType.Size()
	}
	set(UniqueIndices, &a.indices, &a.indexStep)
	set(uniqueOut, &a.rows, &a.rowsStep)
	set(uniqueInverse, &a.inverse, &a.inverseStep)
	a.indexWide = args[UniqueIndices].DType.Size() / 8
	q.SetAddress(&a.count, uniqueCount, args[uniqueCount].Data)
	q.SetAddress(&a.workspace, launch.WorkspaceOperand, workspace)
	a.numRows, a.total, a.padding, a.most = u.D.NumRows, u.D.Total, u.D.Padding(), u.D.MaxRows()
	a.words, a.totalsAt, a.countsAt, a.shift = l.Words, l.Totals, l.Counts, l.Shift
	a.stage, a.end = int64(first), int64(end)
	return q.Submit(0, grid, block)
}
