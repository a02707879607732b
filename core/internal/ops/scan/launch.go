package scan

import (
	"slices"

	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/tensor"
)

// Bits of the word flags.
const (
	FlagFirst = 1 << iota
	FlagMinimum
	FlagReversed
	FlagPrefixPhase
	FlagSuffixPhase
	FlagVectorized
	FlagFallback
	FlagMisaligned
	FlagLineAligned
	FlagFullWarps
	FlagPrefetchNextRow
)

// deviceRun is one run: the dimensions beside the scanned one, the fastest in dx first, and what the kernels are told of operands.
type deviceRun struct {
	*Program
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
func (s *Program) Device(args []tensor.Tensor, workspace uintptr, q *launch.Queue) error {
	if s.RowCount() == 0 || s.Length() == 0 {
		return nil
	}
	d := deviceRun{Program: s, code: s.Code(), operands: [3]int{0, 0, DxOperand}}
	kernels := 0
	switch {
	case args[2].Given():
		d.code, d.operands[1], kernels = "indices", IndicesOperand, len(s.kindKernels())
	case args[1].Given():
		d.operands[1] = 1
	}
	d.arrange(args)
	g := d.selectForOperands(args, &DeviceLimits{SmemBytes: q.Device.SharedMemory(), Clusters: func(g *Config) int64 {
		return q.Clusters(kernels+slices.Index(d.kindKernels(), g.Kernel), g.Splits, uint32(g.Block), g.SmemBytes)
	}})
	if d.reverse {
		d.reverseOrder(&g)
	}
	if d.code == "indices" || d.Cooperative(&g) {
		if err := d.clear(workspace, (g.flagBytes+s.statusTotalBytes(&g))/16, q); err != nil {
			return err
		}
	}
	if err := d.phases(args, workspace, &g, kernels, 0, q); err != nil {
		return err
	}
	switch {
	case d.code == "indices":
		d.pack(args, workspace, &g, 0, 0, q)
		return q.Submit(kernels+slices.Index(indexKernels, "repair"), min(d.rows, 8*int64(s.NumSMs)), launch.BlockThreads)
	case g.needsFallback:
		again := s.Fallback(&g)
		return d.phases(args, workspace, &again, kernels, FlagFallback, q)
	}
	return nil
}

// phases launches a kernel, which is one of the list that begins at `kernels`: where strips are cut into parts for heads, for tails, and
// for the results; where blocks share tiles, for heads and for the results. Of a kind with records, heads and these are found by another.
// Where strips are done again, blocks meet between the phases, which as a rule are none.
func (d *deviceRun) phases(args []tensor.Tensor, workspace uintptr, g *Config, kernels int, flags int64, q *launch.Queue) error {
	cooperative, meet, records := d.Cooperative(g), flags&FlagFallback != 0 && g.Splits > 1, d.recordBytes(g) > 0
	split := g.Splits > 1 && !g.resident && !meet
	own := kernels + slices.Index(d.kindKernels(), g.Kernel) // those of indices are in the same order
	heads := own
	if records {
		heads = len(d.kindKernels()) + len(indexKernels) + slices.Index(recordKernels, g.Kernel)
	}
	for _, step := range [...]struct {
		when   bool
		kernel int
		phase  int64
	}{
		{split && stateSizes[d.code][0].head > 0, heads, FlagPrefixPhase},
		{records && !cooperative, heads, 0},
		{split && !cooperative, own, FlagSuffixPhase},
		{true, own, 0},
	} {
		if !step.when {
			continue
		}
		behind := int64(0) // what is told of heads
		if records && cooperative && step.kernel == own {
			behind = d.statusPrefixBytes(g)
		}
		d.pack(args, workspace, g, step.phase|flags, behind, q)
		q.Launch.Together = cooperative || meet
		if g.InCluster() {
			q.Launch.Cluster = uint32(g.Splits)
		}
		if err := q.Submit(step.kernel, g.Grid, uint32(g.Block)); err != nil {
			return err
		}
	}
	return nil
}

// clear forgets what was known of rows, strips and tiles.
func (d *deviceRun) clear(workspace uintptr, words int64, q *launch.Queue) error {
	q.Begin()
	q.Address(launch.WorkspaceOperand, workspace)
	q.Launch.Put(uint64(words))
	return q.Submit(len(q.Kernels)-1, num.CeilDiv(words, launch.BlockThreads), launch.BlockThreads)
}

// selectForOperands takes the kernel that was asked for, or the one for where dx is dense; a quicker one in its place, if that finds its room.
func (d *deviceRun) selectForOperands(args []tensor.Tensor, room *DeviceLimits) Config {
	kernel, columns := d.Variant, int64(1)
	var candidates []string
	switch {
	case !d.forced:
		flat := d.dims <= 1
		for i := range d.operands {
			flat = flat && (d.dims == 0 || d.stride[i][0] == d.Length()*d.step[i])
		}
		kernel = d.baselineFor(d.code, flat)
		if num.Abs(d.step[2]) != 1 && d.Length() > 1 && d.dims > 0 && d.stride[2][0] == 1 {
			kernel, columns = "columns", d.extent[0]
		}
		candidates = d.candidates(columns)
	case !d.supportsLength(d.code, kernel):
		kernel = "tiles"
	case Strategies[kernel].Baseline != "":
		candidates, kernel = []string{kernel}, Strategies[kernel].Baseline
	}
	if d.forced && kernel == "columns" && d.dims > 0 {
		columns = d.extent[0]
	}
	for _, quick := range candidates {
		if q := Strategies[quick]; q.Baseline == kernel && q.supportsLayout(d, quick, args) {
			if g := d.Configure(d.code, quick, d.rows, columns); q.FitToDevice(d.Program, &g, room) && d.WorkspaceBytes(d.code, &g) <= d.bytes {
				return g
			}
		}
	}
	g := d.Configure(d.code, kernel, d.rows, columns)
	if kernel == "columns" && d.dims == 0 {
		d.dims, d.extent[0] = 1, 1
	}
	if d.WorkspaceBytes(d.code, &g) > d.bytes {
		g = d.Configure(d.code, d.baselineFor(d.code, false), d.rows, 1)
	}
	return g
}

func bit(set bool, value int64) int64 {
	if set {
		return value
	}
	return 0
}

// prefetchesNextRow is kForesee of cuda/scan.cuh: of blocks of which there are few on a multiprocessor.
func (d *deviceRun) prefetchesNextRow(g *Config) bool {
	return g.Kernel == "row" && g.Block > RowThreads/2 && d.bandwidthRich()
}

// pack writes ScanArgs of cuda/scan.cuh. Height is that of the shape, or what is told begins so many bytes later.
func (d *deviceRun) pack(args []tensor.Tensor, workspace uintptr, g *Config, phase, behind int64, q *launch.Queue) {
	q.Begin()
	q.Launch.Shared = g.SmemBytes
	put := func(words ...int64) {
		for _, w := range words {
			q.Launch.Put(uint64(w))
		}
	}
	put(d.Length(), int64(d.dims))
	for k := range tensor.MaxRank - 1 {
		put(max(1, d.extent[k]))
	}
	flags := phase | d.dense(args, g) | bit(d.Program.first, FlagFirst) | bit(d.kind == "cummin", FlagMinimum) | bit(d.reverse, FlagReversed)
	flags |= bit(d.prefetchesNextRow(g), FlagPrefetchNextRow)
	put(g.TilesPerSplit, g.Splits, g.Segments, g.Width, g.Height+behind, flags, g.flagBytes+d.statusTotalBytes(g), d.statesEnd(d.code, g))
	for _, used := range [...]bool{g.TilesPerSplit*g.Splits > 1 || d.recordBytes(g) > 0, d.code == "indices" || g.needsFallback} {
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
