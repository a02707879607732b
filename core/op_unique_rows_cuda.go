package core

import "math/bits"

// Geometry of cuda/unique_rows.cu.
const (
	uniqueMost       = 1024    // kMost: threads of a block
	uniqueGroup      = 32      // cells of 32 rows
	uniqueSingle     = 1 << 13 // positions that one block does
	uniqueSingleRows = 1 << 17
)

// Stages of the kernel.
const (
	uniqueClear = iota
	uniqueMark
	uniqueCountGroups
	uniqueWrite
	uniquePlace
	uniqueStages
)

func (u *uniqueProgram) symbols() []symbol {
	return []symbol{{uniqueRows.Image, uniqueRows.Symbol("", u.kernel(), u.d.IndexDType)}}
}

// uniqueLayout is where things lie in the workspace, in bytes: the cells, the totals of 2^shift groups, the counts of groups.
type uniqueLayout struct {
	cells, shift, totals, counts, size int64
}

func (u *uniqueProgram) layout() (l uniqueLayout) {
	rows := u.d.NumRows
	if u.d.Total == 0 {
		rows = 0
	}
	l.cells = max(1, ceil(rows, 32*uniqueMost)) * uniqueMost
	groups := l.cells / uniqueGroup
	l.shift = int64(bits.Len64(uint64(groups))) / 2 // so that a group has as few totals before it as counts
	l.totals = l.cells * 8
	l.counts = l.totals + ceil(ceil(groups, 1<<l.shift)*4, workspaceAlignment)*workspaceAlignment
	l.size = l.counts + groups*4
	return l
}

func (u *uniqueProgram) workspace() int64 {
	if !u.cuda {
		return 0
	}
	return u.layout().size
}

func (u *uniqueProgram) device(args []Tensor, workspace uintptr, q *queue) error {
	if u.single {
		return u.launch(q, args, workspace, uniqueClear, uniqueStages, 1, uniqueMost)
	}
	l := u.layout()
	for stage, row := range []struct{ grid, block int64 }{
		uniqueClear:       {ceil(l.counts/16, blockThreads), blockThreads},
		uniqueMark:        {min(ceil(u.d.Total, blockThreads), int64(u.units)), blockThreads}, // few: see the kernel
		uniqueCountGroups: {l.cells / blockThreads, blockThreads},
		uniqueWrite:       {l.cells / blockThreads, blockThreads},
		uniquePlace:       {max(1, ceil(u.d.Total, blockThreads)), blockThreads},
	} {
		if err := u.launch(q, args, workspace, stage, stage+1, row.grid, uint32(row.block)); err != nil {
			return err
		}
	}
	return nil
}

// launch does the stages first..end-1.
func (u *uniqueProgram) launch(q *queue, args []Tensor, workspace uintptr, first, end int, grid int64, block uint32) error {
	q.begin()
	for i := uniqueIndices; i <= uniqueInverse; i++ {
		t := &args[i]
		q.address(i, t.Data)
		q.launch.Put(uint64(t.Strides[0] * t.DType.Size()))
		if i == uniqueIndices {
			q.launch.Put(uint64(t.DType.Size()) / 8)
		}
	}
	q.address(uniqueCount, args[uniqueCount].Data)
	q.address(workspaceOperand, workspace)
	l := u.layout()
	for _, word := range []int64{u.d.NumRows, u.d.Total, u.d.padding(), u.d.most(), l.cells, l.totals, l.counts, l.shift, int64(first), int64(end)} {
		q.launch.Put(uint64(word))
	}
	return q.submit(0, grid, block)
}
