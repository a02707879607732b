package core

import "slices"

// Bits of the word flags.
const (
	scanFirst = 1 << iota
	scanMinimum
	scanReversed
	scanHeads
	scanTails
	scanDense
	scanMarked
	scanLeads
	scanLines
	scanFull
	scanForesee
)

// deviceScan is one run: the dimensions beside the scanned one, the fastest in dx first, and what the kernels are told of operands.
type deviceScan struct {
	*scanProgram
	code     string // the kind as its kernels call it
	operands [3]int // dy, x or indices (0: neither), dx
	rows     int64
	dims     int
	extent   [MaxRank]int64
	first    [3]int64
	step     [3]int64
	stride   [3][MaxRank]int64
}

// device launches the scan: one kernel, or several where strips are cut into parts.
func (s *scanProgram) device(args []Tensor, workspace uintptr, q *queue) error {
	if s.rowCount() == 0 || s.length() == 0 {
		return nil
	}
	d := deviceScan{scanProgram: s, code: s.code(), operands: [3]int{0, 0, dxOperand}}
	kernels := 0
	switch {
	case args[2].present():
		d.code, d.operands[1], kernels = "indices", indicesOperand, len(s.ownKernels())
	case args[1].present():
		d.operands[1] = 1
	}
	d.lay(args)
	g := d.choose(args, &scanRoom{q.device.SharedMemory(), func(g *scanShape) int64 {
		return q.clusters(kernels+slices.Index(d.ownKernels(), g.kernel), g.parts, uint32(g.block), g.shared)
	}})
	if d.reverse {
		d.mirror(&g)
	}
	if d.code == "indices" || d.together(&g) {
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
		return q.submit(kernels+slices.Index(kernelsOfIndices, "repair"), min(d.rows, 8*int64(s.units)), blockThreads)
	case g.marked:
		again := s.again(&g)
		return d.phases(args, workspace, &again, kernels, scanMarked, q)
	}
	return nil
}

// phases launches a kernel, which is one of the list that begins at `kernels`: where strips are cut into parts for heads, for tails, and
// for the results; where blocks share tiles, for heads and for the results. Of a kind with records, heads and these are found by another.
// Where strips are done again, blocks meet between the phases, which as a rule are none.
func (d *deviceScan) phases(args []Tensor, workspace uintptr, g *scanShape, kernels int, flags int64, q *queue) error {
	team, meet, records := d.together(g), flags&scanMarked != 0 && g.parts > 1, d.recordBytes(g) > 0
	cut := g.parts > 1 && !g.held && !meet
	own := kernels + slices.Index(d.ownKernels(), g.kernel) // those of indices are in the same order
	heads := own
	if records {
		heads = len(d.ownKernels()) + len(kernelsOfIndices) + slices.Index(kernelsOfRecords, g.kernel)
	}
	for _, step := range [...]struct {
		when   bool
		kernel int
		phase  int64
	}{
		{cut && scanStates[d.code][0].head > 0, heads, scanHeads},
		{records && !team, heads, 0},
		{cut && !team, own, scanTails},
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
		q.launch.Together = team || meet
		if g.clustered() {
			q.launch.Cluster = uint32(g.parts)
		}
		if err := q.submit(step.kernel, g.grid, uint32(g.block)); err != nil {
			return err
		}
	}
	return nil
}

// clear forgets what was known of rows, strips and tiles.
func (d *deviceScan) clear(workspace uintptr, words int64, q *queue) error {
	q.begin()
	q.address(workspaceOperand, workspace)
	q.launch.Put(uint64(words))
	return q.submit(len(q.kernels)-1, ceil(words, blockThreads), blockThreads)
}

// choose takes the kernel that was asked for, or the one for where dx is dense; a quicker one in its place, if that finds its room.
func (d *deviceScan) choose(args []Tensor, room *scanRoom) scanShape {
	kernel, columns := d.variant, int64(1)
	var quicker []string
	switch {
	case !d.forced:
		flat := d.dims <= 1
		for i := range d.operands {
			flat = flat && (d.dims == 0 || d.stride[i][0] == d.length()*d.step[i])
		}
		kernel = d.along(d.code, flat)
		if magnitude(d.step[2]) != 1 && d.length() > 1 && d.dims > 0 && d.stride[2][0] == 1 {
			kernel, columns = "columns", d.extent[0]
		}
		quicker = d.quicker(columns)
	case !d.holds(d.code, kernel):
		kernel = "tiles"
	case scanKernels[kernel].instead != "":
		quicker, kernel = []string{kernel}, scanKernels[kernel].instead
	}
	if d.forced && kernel == "columns" && d.dims > 0 {
		columns = d.extent[0]
	}
	for _, quick := range quicker {
		if q := scanKernels[quick]; q.instead == kernel && q.lies(d, quick, args) {
			if g := d.share(d.code, quick, d.rows, columns); q.fill(d.scanProgram, &g, room) && d.needs(d.code, &g) <= d.bytes {
				return g
			}
		}
	}
	g := d.share(d.code, kernel, d.rows, columns)
	if kernel == "columns" && d.dims == 0 {
		d.dims, d.extent[0] = 1, 1
	}
	if d.needs(d.code, &g) > d.bytes {
		g = d.share(d.code, d.along(d.code, false), d.rows, 1)
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
func (d *deviceScan) foresees(g *scanShape) bool {
	return g.kernel == "row" && g.block > scanRowThreads/2 && d.hurries()
}

// pack writes ScanArgs of cuda/scan.cuh. Height is that of the shape, or what is told begins so many bytes later.
func (d *deviceScan) pack(args []Tensor, workspace uintptr, g *scanShape, phase, behind int64, q *queue) {
	q.begin()
	q.launch.Shared = g.shared
	put := func(words ...int64) {
		for _, w := range words {
			q.launch.Put(uint64(w))
		}
	}
	put(d.length(), int64(d.dims))
	for k := range MaxRank - 1 {
		put(max(1, d.extent[k]))
	}
	flags := phase | d.dense(args, g) | bit(d.scanProgram.first, scanFirst) | bit(d.kind == "cummin", scanMinimum) | bit(d.reverse, scanReversed)
	flags |= bit(d.foresees(g), scanForesee)
	put(g.tiles, g.parts, g.strips, g.width, g.height+behind, flags, g.marks+d.toldBytes(g), d.statesEnd(d.code, g))
	for _, used := range [...]bool{g.tiles*g.parts > 1 || d.recordBytes(g) > 0, d.code == "indices" || g.marked} {
		if used {
			q.address(workspaceOperand, workspace)
		} else {
			put(0)
		}
	}
	for i, operand := range d.operands {
		if i == 1 && operand == 0 {
			put(0)
		} else {
			q.address(operand, args[operand].Data)
		}
		put(d.first[i], d.step[i])
		put(d.stride[i][:MaxRank-1]...)
	}
}
