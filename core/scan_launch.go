package core

import (
	"math"
	"slices"
)

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
	if d.code == "indices" || g.kernel == "slabs" || d.together(&g) {
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
func (d *deviceScan) phases(args []Tensor, workspace uintptr, g *scanShape, kernels int, flags int64, q *queue) error {
	cut, team, records := g.parts > 1 && !g.held, d.together(g), d.recordBytes(g) > 0
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
		q.launch.Together = team
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

// lay orders the other dimensions by falling density of dx, and joins those that walk like one in every operand.
func (d *deviceScan) lay(args []Tensor) {
	var order []int
	for k, extent := range d.shape {
		if k == d.dim || extent == 1 {
			continue
		}
		at := len(order)
		for order = append(order, k); at > 0 && magnitude(args[dxOperand].Strides[order[at-1]]) >= magnitude(args[dxOperand].Strides[k]); at-- {
			order[at] = order[at-1]
		}
		order[at] = k
	}
	d.rows = d.rowCount()
	for i, operand := range d.operands {
		if len(d.shape) > 0 && (i != 1 || operand != 0) {
			d.step[i] = args[operand].strides()[d.dim]
		}
	}
	for _, k := range order {
		var stride [3]int64
		for i, operand := range d.operands {
			if i != 1 || operand != 0 {
				stride[i] = args[operand].strides()[k]
			}
		}
		if last := d.dims - 1; last >= 0 && d.joins(last, stride) {
			d.extent[last] *= d.shape[k]
			continue
		}
		d.extent[d.dims] = d.shape[k]
		for i := range stride {
			d.stride[i][d.dims] = stride[i]
		}
		d.dims++
	}
}

// joins reports that a slower dimension continues dimension k in every operand.
func (d *deviceScan) joins(k int, stride [3]int64) bool {
	for i := range stride {
		if stride[i] != d.stride[i][k]*d.extent[k] {
			return false
		}
	}
	return true
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

// mirror makes positions run in scan order. Rows that lie end to end are mirrored together, so that they still do.
func (d *deviceScan) mirror(g *scanShape) {
	for i := range d.operands {
		d.first[i] = (d.length() - 1) * d.step[i]
		d.step[i] = -d.step[i]
		if g.kernel == "rows" && d.dims == 1 {
			d.first[i] += (d.extent[0] - 1) * d.stride[i][0]
			d.stride[i][0] = -d.stride[i][0]
		}
	}
}

func bit(set bool, value int64) int64 {
	if set {
		return value
	}
	return 0
}

// dense are the flags that say how the operands lie: kDense, kLeads and kLines of cuda/scan.cuh.
func (d *deviceScan) dense(args []Tensor, g *scanShape) int64 {
	if d.code == "indices" || g.kernel == "columns" || d.dims > 1 || d.rows > math.MaxUint32 {
		return 0
	}
	run := d.length() // adjacent elements
	if g.kernel == "rows" {
		run *= g.width
	}
	leads := run%d.vector() != 0
	switch {
	case leads && g.kernel != "long" && !(g.kernel == "row" && tamed(d.code)):
		return 0
	case g.kernel == "long" && d.lined() > run && d.begins(args, g, lineBytes/d.element.Size()):
		return scanDense | scanLeads | scanLines
	case !d.begins(args, g, bit(leads, d.vector())):
		return 0
	}
	return scanDense | bit(leads, scanLeads) | bit(d.full(g), scanFull)
}

// full is kFull of cuda/scan.cuh.
func (d *deviceScan) full(g *scanShape) bool {
	return g.kernel == "row" && d.step == [3]int64{1, 1, 1} && d.length()%(32*d.lane(d.code)) == 0 && d.rows%g.width == 0
}

// foresees is kForesee of cuda/scan.cuh: of blocks of which there are few on a multiprocessor.
func (d *deviceScan) foresees(g *scanShape) bool {
	return g.kernel == "row" && g.block > scanRowThreads/2 && d.hurries()
}

// begins reports that whole aligned vectors make the rows of every operand; or, with a unit, that the first row begins with a vector, and
// each at the same place of such units in all of them.
func (d *deviceScan) begins(args []Tensor, g *scanShape, unit int64) bool {
	place := func(i int) (first, stride int64) { // of the lowest element of the first row, or vector
		first, adjacent := d.first[i], d.vector()
		if unit > 0 {
			adjacent = d.length()
		}
		if d.step[i] < 0 {
			first -= adjacent - 1
		}
		return int64(args[d.operands[i]].Data) + first*d.element.Size(), d.stride[i][0]
	}
	to, apart := place(2)
	for i, operand := range d.operands {
		repeats := i == 0 && d.step[i] == 0 && (g.kernel != "rows" || d.stride[i][0] == 0) // a number of dy is all that a team reads
		if repeats || i == 1 && operand == 0 {
			continue
		}
		from, stride := place(i)
		aligned := from%16 == 0
		switch {
		case unit > 0:
			aligned = aligned && (from-to)%(unit*d.element.Size()) == 0
			if d.dims > 0 { // vectors at the ends of a row hold memory of its neighbours; nothing is ahead of the first, nor looked at behind the last
				aligned = aligned && stride >= d.length() && (stride-apart)%unit == 0
			}
		case d.dims == 0:
		case g.kernel == "rows":
			aligned = aligned && stride == d.length()*d.step[i]
		default:
			aligned = aligned && stride%d.vector() == 0
		}
		if magnitude(d.step[i]) != 1 || !aligned {
			return false
		}
	}
	return true
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
