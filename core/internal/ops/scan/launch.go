package scan

import (
	"slices"

	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/tensor"
)

// Bits of the word flags.
const (
	ScanFirst = 1 << iota
	ScanMinimum
	ScanReversed
	ScanHeads
	ScanTails
	ScanDense
	ScanMarked
	ScanLeads
	ScanLines
	ScanFull
	ScanForesee
)

// deviceScan is one run: the dimensions beside the scanned one, the fastest in dx first, and what the kernels are told of operands.
type deviceScan struct {
	*ScanProgram
	code     string // the kind as its kernels call it
	operands [3]int // dy, x or indices (0: neither), dx
	rows     int64
	dims     int
	extent   [tensor.MaxRank]int64
	first    [3]int64
	step     [3]int64
	stride   [3][tensor.MaxRank]int64
}

// Device launches the scan: one kernel, or several where strips are cut into parts.
func (s *ScanProgram) Device(args []tensor.Tensor, workspace uintptr, q *launch.Queue) error {
	if s.RowCount() == 0 || s.Length() == 0 {
		return nil
	}
	d := deviceScan{ScanProgram: s, code: s.Code(), operands: [3]int{0, 0, DxOperand}}
	kernels := 0
	switch {
	case args[2].Given():
		d.code, d.operands[1], kernels = "indices", IndicesOperand, len(s.ownKernels())
	case args[1].Given():
		d.operands[1] = 1
	}
	d.lay(args)
	g := d.choose(args, &ScanRoom{Shared: q.Device.SharedMemory(), Clusters: func(g *ScanShape) int64 {
		return q.Clusters(kernels+slices.Index(d.ownKernels(), g.Kernel), g.Parts, uint32(g.Block), g.Shared)
	}})
	if d.reverse {
		d.mirror(&g)
	}
	if d.code == "indices" || d.Together(&g) {
		if err := d.clear(workspace, (g.marks+s.toldBytes(&g))/16, q); err != nil {
			return err
		}
	}
	if err := d.phases(args, workspace, &g, kernels, 0, q); err != nil {
		return err
	}
	switch {
	case d.code == "indices":
		d.pack(args, workspace, &g, 0, 0, q)
		return q.Submit(kernels+slices.Index(kernelsOfIndices, "repair"), min(d.rows, 8*int64(s.Units)), launch.BlockThreads)
	case g.marked:
		again := s.Again(&g)
		return d.phases(args, workspace, &again, kernels, ScanMarked, q)
	}
	return nil
}

// phases launches a kernel, which is one of the list that begins at `kernels`: where strips are cut into parts for heads, for tails, and
// for the results; where blocks share tiles, for heads and for the results. Of a kind with records, heads and these are found by another.
// Where strips are done again, blocks meet between the phases, which as a rule are none.
func (d *deviceScan) phases(args []tensor.Tensor, workspace uintptr, g *ScanShape, kernels int, flags int64, q *launch.Queue) error {
	team, meet, records := d.Together(g), flags&ScanMarked != 0 && g.Parts > 1, d.recordBytes(g) > 0
	cut := g.Parts > 1 && !g.held && !meet
	own := kernels + slices.Index(d.ownKernels(), g.Kernel) // those of indices are in the same order
	heads := own
	if records {
		heads = len(d.ownKernels()) + len(kernelsOfIndices) + slices.Index(kernelsOfRecords, g.Kernel)
	}
	for _, step := range [...]struct {
		when   bool
		kernel int
		phase  int64
	}{
		{cut && scanStates[d.code][0].head > 0, heads, ScanHeads},
		{records && !team, heads, 0},
		{cut && !team, own, ScanTails},
		{true, own, 0},
	} {
		if !step.when {
			continue
		}
		behind := int64(0) // what is told of heads
		if records && team && step.kernel == own {
			behind = d.toldHeads(g)
		}
		d.pack(args, workspace, g, step.phase|flags, behind, q)
		q.Launch.Together = team || meet
		if g.Clustered() {
			q.Launch.Cluster = uint32(g.Parts)
		}
		if err := q.Submit(step.kernel, g.Grid, uint32(g.Block)); err != nil {
			return err
		}
	}
	return nil
}

// clear forgets what was known of rows, strips and tiles.
func (d *deviceScan) clear(workspace uintptr, words int64, q *launch.Queue) error {
	q.Begin()
	q.Address(launch.WorkspaceOperand, workspace)
	q.Launch.Put(uint64(words))
	return q.Submit(len(q.Kernels)-1, num.CeilDiv(words, launch.BlockThreads), launch.BlockThreads)
}

// choose takes the kernel that was asked for, or the one for where dx is dense; a quicker one in its place, if that finds its room.
func (d *deviceScan) choose(args []tensor.Tensor, room *ScanRoom) ScanShape {
	kernel, columns := d.Variant, int64(1)
	var quicker []string
	switch {
	case !d.forced:
		flat := d.dims <= 1
		for i := range d.operands {
			flat = flat && (d.dims == 0 || d.stride[i][0] == d.Length()*d.step[i])
		}
		kernel = d.along(d.code, flat)
		if num.Abs(d.step[2]) != 1 && d.Length() > 1 && d.dims > 0 && d.stride[2][0] == 1 {
			kernel, columns = "columns", d.extent[0]
		}
		quicker = d.quicker(columns)
	case !d.holds(d.code, kernel):
		kernel = "tiles"
	case ScanKernels[kernel].Instead != "":
		quicker, kernel = []string{kernel}, ScanKernels[kernel].Instead
	}
	if d.forced && kernel == "columns" && d.dims > 0 {
		columns = d.extent[0]
	}
	for _, quick := range quicker {
		if q := ScanKernels[quick]; q.Instead == kernel && q.lies(d, quick, args) {
			if g := d.Share(d.code, quick, d.rows, columns); q.Fill(d.ScanProgram, &g, room) && d.Needs(d.code, &g) <= d.bytes {
				return g
			}
		}
	}
	g := d.Share(d.code, kernel, d.rows, columns)
	if kernel == "columns" && d.dims == 0 {
		d.dims, d.extent[0] = 1, 1
	}
	if d.Needs(d.code, &g) > d.bytes {
		g = d.Share(d.code, d.along(d.code, false), d.rows, 1)
	}
	return g
}

func bit(set bool, value int64) int64 {
	if set {
		return value
	}
	return 0
}

// foresees is kForesee of cuda/scan.cuh: of blocks of which there are few on a multiprocessor.
func (d *deviceScan) foresees(g *ScanShape) bool {
	return g.Kernel == "row" && g.Block > ScanRowThreads/2 && d.hurries()
}

// pack writes ScanArgs of cuda/scan.cuh. Height is that of the shape, or what is told begins so many bytes later.
func (d *deviceScan) pack(args []tensor.Tensor, workspace uintptr, g *ScanShape, phase, behind int64, q *launch.Queue) {
	q.Begin()
	q.Launch.Shared = g.Shared
	put := func(words ...int64) {
		for _, w := range words {
			q.Launch.Put(uint64(w))
		}
	}
	put(d.Length(), int64(d.dims))
	for k := range tensor.MaxRank - 1 {
		put(max(1, d.extent[k]))
	}
	flags := phase | d.dense(args, g) | bit(d.ScanProgram.first, ScanFirst) | bit(d.kind == "cummin", ScanMinimum) | bit(d.reverse, ScanReversed)
	flags |= bit(d.foresees(g), ScanForesee)
	put(g.Tiles, g.Parts, g.Strips, g.Width, g.Height+behind, flags, g.marks+d.toldBytes(g), d.statesEnd(d.code, g))
	for _, used := range [...]bool{g.Tiles*g.Parts > 1 || d.recordBytes(g) > 0, d.code == "indices" || g.marked} {
		if used {
			q.Address(launch.WorkspaceOperand, workspace)
		} else {
			put(0)
		}
	}
	for i, operand := range d.operands {
		if i == 1 && operand == 0 {
			put(0)
		} else {
			q.Address(operand, args[operand].Data)
		}
		put(d.first[i], d.step[i])
		put(d.stride[i][:tensor.MaxRank-1]...)
	}
}
