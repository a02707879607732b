package core

import (
	"fmt"
	"slices"
)

// Launch geometry of cuda/scan*.cuh. It follows from the shape and the number of multiprocessors alone, but for the choice between
// rows and columns, which looks at where dx is dense.
const (
	scanRowThreads    = 512 // of a block, at most: row, tiles
	scanRowsThreads   = 256 // rows
	scanColumnThreads = 512 // columns
	scanShortRow      = 16  // rows: a warp has so many times what a lane owns, at least two rows
	scanFill          = 2   // blocks for each multiprocessor, so that strips need not be cut into parts
	narrowStrip       = 64  // bytes: strips that are narrower read less than memory hands out at once
)

// Bits of the word flags.
const (
	scanFirst = 1 << iota
	scanMinimum
	scanReversed
	scanHeads
	scanTails
)

const dxOperand = 3

// scanStates are the sizes of what is handed from part to part: of a head and of a tail, for float32 and for float64 accumulators.
var scanStates = map[string][2]struct{ head, tail int64 }{
	"cumsum":       {{0, 8}, {0, 8}},
	"cumprod":      {{8, 16}, {16, 32}},
	"cumextremum":  {{4, 8}, {8, 16}},
	"logcumsumexp": {{8, 8}, {16, 16}},
	"indices":      {{0, 8}, {0, 16}},
}

// scanShape is how the threads of a kernel share the rows: strips (rows, or columns that lie side by side) in parts, parts in tiles.
type scanShape struct {
	kernel               string
	tiles, parts, strips int64
	columns              int64 // of a strip
	width, height        int64 // as cuda/scan*.cuh says for each kernel
	grid, block          int64
}

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

// code is what kernels call the kind.
func (s *scanProgram) code() string { return scan.kind(s.kind).code() }

// indexed reports that winners may be given instead of x.
func (s *scanProgram) indexed() bool { return scanKinds[s.kind].indices }

func (s *scanProgram) prepareCUDA(preference Preference) (program, error) {
	s.cuda, s.forced = true, preference.Kernel != ""
	if s.variant = preference.Kernel; s.forced && !s.holds(s.code(), s.variant) {
		return nil, refuse(Unsupported, scan.op(s.kind), "preference.kernel", "one for rows of this length", fmt.Sprintf("%q", s.variant), "")
	}
	if !s.forced {
		s.variant = s.along(s.code(), true)
		if inner, _ := product(s.shape[min(s.dim+1, len(s.shape)):]); inner > 1 && s.length() > 1 {
			s.variant = "columns"
		}
	}
	s.bytes = s.badBytes() + s.stateBytes()
	return s, nil
}

// symbols are the kernels of the kind, then those for indices.
func (s *scanProgram) symbols() (list []symbol) {
	row := scan.kind(s.kind)
	for _, kernel := range kernelsOfScans {
		list = append(list, symbol{scan.image(s.kind), scan.Symbol(s.kind, kernel, s.element)})
	}
	if s.indexed() {
		for _, kernel := range append(slices.Clone(kernelsOfScans), "repair") {
			list = append(list, symbol{scan.image(row.Name), scan.Name + "_indices_" + kernel + "_" + s.element.suffix()})
		}
		list = append(list, symbol{scan.Image, "scan_clear"})
	}
	return list
}

func (s *scanProgram) geometry() string {
	rows := s.rowCount()
	text := fmt.Sprintf("%s, %d rows of %d", s.variant, rows, s.length())
	if !s.cuda || rows*s.length() == 0 {
		return text
	}
	g := s.share(s.code(), s.variant, rows, s.inner())
	return fmt.Sprintf("%s in %d blocks of %d threads, %d parts of %d tiles", text, g.grid, g.block, g.parts, g.tiles)
}

func (s *scanProgram) workspace() int64 { return s.bytes }

// rowCount is the number of rows; 0 where there is nothing to do.
func (s *scanProgram) rowCount() int64 {
	all, _ := product(s.shape)
	return all / max(1, s.length())
}

// inner is the number of columns that lie side by side in a contiguous tensor.
func (s *scanProgram) inner() int64 {
	inner, _ := product(s.shape[min(s.dim+1, len(s.shape)):])
	return max(1, inner)
}

// lane is the number of elements of a row that a thread owns, up to 64 bytes; vector those of a 16-byte access.
func (s *scanProgram) lane(code string) int64 { return s.vectors(code) * s.vector() }
func (s *scanProgram) vector() int64          { return 16 / s.element.Size() }

// vectors is kVectors of cuda/scan_inner.cuh.
func (s *scanProgram) vectors(code string) int64 {
	if code == "logcumsumexp" && s.element.Size() == 2 {
		return 2
	}
	return 4
}

// padded is the length of a row with what may lie ahead of its first aligned vector.
func (s *scanProgram) padded() int64 {
	if s.length()%s.vector() != 0 {
		return s.length() + s.vector() - 1
	}
	return s.length()
}

// holds reports that a kernel takes rows of this length.
func (s *scanProgram) holds(code, kernel string) bool {
	switch kernel {
	case "rows":
		return s.length() <= 32*s.lane(code)
	case "row":
		return s.padded() <= scanRowThreads*s.lane(code)
	}
	return true
}

// along is the kernel for a dense scanned dimension; flat says that rows lie end to end.
func (s *scanProgram) along(code string, flat bool) string {
	switch n := s.length(); {
	case n <= scanShortRow*s.lane(code) && (flat || n < 64):
		return "rows"
	case s.holds(code, "row"):
		return "row"
	}
	return "tiles"
}

// share gives the rows to threads. Of columns, `columns` are side by side.
func (s *scanProgram) share(code, kernel string, rows, columns int64) scanShape {
	n, lane := max(1, s.length()), s.lane(code)
	g := scanShape{kernel: kernel, tiles: 1, parts: 1, strips: rows, columns: 1}
	switch kernel {
	case "rows":
		g.width, g.block = 32*lane/n, scanRowsThreads
		if whole := s.vector() / gcd(s.vector(), n); g.width >= whole { // rows that begin with an aligned vector
			g.width -= g.width % whole
		}
		g.grid = ceil(rows, g.block/32*g.width)
	case "row":
		g.height, g.width = ceil(s.padded(), 32*lane), 1
		if g.height&(g.height-1) == 0 && g.height <= 4 {
			g.width = 8 / g.height
		}
		g.block, g.grid = 32*g.height*g.width, ceil(rows, g.width)
	case "tiles":
		g.block, g.height = scanRowThreads, scanRowThreads/32
		g.cut(ceil(s.padded(), scanRowThreads*lane), s.units)
		g.grid = g.strips * g.parts
	case "columns":
		across, down := s.own(code)
		most := narrowStrip / s.element.Size()
		g.width = min(pow2(ceil(columns, across)), 32)
		for g.width*across > most && ceil(columns, g.width*across)*(rows/columns) < scanFill*int64(s.units) {
			g.width /= 2
		}
		g.height = min(pow2(ceil(n, down)), scanColumnThreads/g.width)
		g.columns = g.width * across
		g.strips = ceil(columns, g.columns) * (rows / columns)
		if g.block = g.width * g.height; g.block <= 32 {
			g.block = 128
			g.grid = ceil(g.strips, g.block/(g.width*g.height))
			return g
		}
		g.cut(ceil(n, down*g.height), s.units)
		g.grid = g.strips * g.parts
	}
	return g
}

// own is kAcross (in elements) and kDown of cuda/scan_outer.cuh.
func (s *scanProgram) own(code string) (across, down int64) {
	size := s.element.Size()
	switch {
	case size == 8:
		return 1, 8
	case code == "cumsum":
		return 8 / size, 8
	case s.vectors(code) == 2:
		return 4 / size, 8
	}
	return 4 / size, 16
}

// cut makes parts of strips of so many tiles, where there are too few strips to fill the device.
func (g *scanShape) cut(tiles int64, units int) {
	g.parts = clamp(ceil(scanFill*int64(units), g.strips), 1, tiles)
	g.tiles = ceil(tiles, g.parts)
	g.parts = ceil(tiles, g.tiles)
}

// states is the number of bytes that parts and tiles leave for others: heads of parts, heads before tiles, tails of parts.
func (s *scanProgram) states(code string, g *scanShape) int64 {
	if g.tiles*g.parts == 1 {
		return 0
	}
	size, all := scanStates[code][s.element.Size()/8], g.strips*g.parts*g.columns
	return align16(all*size.head) + align16(all*g.tiles*size.head) + align16(all*size.tail)
}

// badBytes is the room for what is known of each row of indices, and of all.
func (s *scanProgram) badBytes() int64 {
	if !s.indexed() {
		return 0
	}
	return align16(4 * (1 + s.rowCount()))
}

// stateBytes is enough for rows and for columns, whatever dimension dx is dense along.
func (s *scanProgram) stateBytes() (most int64) {
	rows := s.rowCount()
	if rows == 0 || s.length() == 0 {
		return 0
	}
	codes := []string{s.code()}
	if s.indexed() {
		codes = append(codes, "indices")
	}
	for _, code := range codes {
		need := func(kernel string, columns int64) {
			g := s.share(code, kernel, rows, columns)
			most = max(most, s.states(code, &g))
		}
		if !s.forced || s.variant == "tiles" {
			if s.forced || !s.holds(code, "row") {
				need("tiles", 1)
			}
		}
		if s.forced && s.variant != "columns" {
			continue
		}
		need("columns", s.inner())
		for d, extent := range s.shape {
			if d != s.dim {
				need("columns", extent)
			}
		}
		if s.forced {
			need("columns", 1)
		}
	}
	return most
}

func align16(n int64) int64 { return ceil(n, 16) * 16 }

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

func (s *scanProgram) device(args []Tensor, workspace uintptr, q *queue) error {
	if s.rowCount() == 0 || s.length() == 0 {
		return nil
	}
	d := deviceScan{scanProgram: s, code: s.code(), operands: [3]int{0, 0, dxOperand}}
	kernels := 0
	switch {
	case args[2].present():
		d.code, d.operands[1], kernels = "indices", indicesOperand, len(kernelsOfScans)
	case args[1].present():
		d.operands[1] = 1
	}
	d.lay(args)
	g := d.choose()
	if d.reverse {
		d.mirror(&g)
	}
	if d.code == "indices" {
		if err := d.clear(workspace, q); err != nil {
			return err
		}
	}
	kernel := kernels + slices.Index(kernelsOfScans, g.kernel)
	for _, phase := range [...]int64{scanHeads, scanTails, 0} {
		if phase != 0 && g.parts == 1 || phase == scanHeads && scanStates[d.code][0].head == 0 {
			continue
		}
		d.pack(args, workspace, &g, phase, q)
		if err := q.submit(kernel, g.grid, uint32(g.block)); err != nil {
			return err
		}
	}
	if d.code != "indices" {
		return nil
	}
	d.pack(args, workspace, &g, 0, q)
	return q.submit(2*len(kernelsOfScans), min(d.rows, 8*int64(s.units)), blockThreads)
}

// clear forgets what was known of rows of indices.
func (d *deviceScan) clear(workspace uintptr, q *queue) error {
	words := d.badBytes() / 16
	q.begin()
	q.address(workspaceOperand, workspace)
	q.launch.Put(uint64(words))
	return q.submit(2*len(kernelsOfScans)+1, ceil(words, blockThreads), blockThreads)
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

// choose takes the kernel that was asked for, or the one for where dx is dense; what is faster but finds no room is left.
func (d *deviceScan) choose() scanShape {
	kernel := d.variant
	if !d.forced {
		flat := d.dims <= 1
		for i := range d.operands {
			flat = flat && (d.dims == 0 || d.stride[i][0] == d.length()*d.step[i])
		}
		kernel = d.along(d.code, flat)
		if magnitude(d.step[2]) != 1 && d.length() > 1 && d.dims > 0 && d.stride[2][0] == 1 {
			kernel = "columns"
		}
	} else if !d.holds(d.code, kernel) {
		kernel = "tiles"
	}
	columns := int64(1)
	if kernel == "columns" && d.dims > 0 {
		columns = d.extent[0]
	}
	g := d.share(d.code, kernel, d.rows, columns)
	if kernel == "columns" && d.dims == 0 {
		d.dims, d.extent[0] = 1, 1
	}
	if d.badBytes()+d.states(d.code, &g) > d.bytes {
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

// pack writes ScanArgs of cuda/scan.cuh.
func (d *deviceScan) pack(args []Tensor, workspace uintptr, g *scanShape, phase int64, q *queue) {
	q.begin()
	put := func(words ...int64) {
		for _, w := range words {
			q.launch.Put(uint64(w))
		}
	}
	put(d.length(), int64(d.dims))
	for k := range MaxRank - 1 {
		put(max(1, d.extent[k]))
	}
	flags := phase | bit(d.scanProgram.first, scanFirst) | bit(d.kind == "cummin", scanMinimum) | bit(d.reverse, scanReversed)
	put(g.tiles, g.parts, g.strips, g.width, g.height, flags, d.badBytes())
	for _, used := range [...]bool{g.tiles*g.parts > 1, d.code == "indices"} {
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
