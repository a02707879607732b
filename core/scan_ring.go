package core

// Geometry of cuda/scan_strips.cuh and cuda/scan_long.cuh.
const (
	stripThreads = 512
	stripWarps   = stripThreads / 32
	stripBeside  = 32 << 10 // bytes of shared memory beside the ring, at most
	longThreads  = 256
	longVectors  = 4 // of a thread
	longBlocks   = 2 // of a multiprocessor
	longBeside   = 2 << 10
	ringTiles    = 6       // at most
	ringLongest  = 1 << 30 // elements of a part of a row, which are counted in 32 bits
	ringLeast    = 1 << 20 // bytes of an operand: smaller ones are done by others before these are launched
)

// anyOf names the kernel that does everything in the place of one with a ring.
var anyOf = map[string]string{"strips": "columns", "long": "tiles"}

// tamed reports that the kind is tried in a simpler form first, which says what it cannot do.
func tamed(code string) bool { return code == "cumprod" || code == "logcumsumexp" }

// ringTile is how many columns a tile has and how long they are, and its bytes in the ring.
func (s *scanProgram) ringTile(kernel string) (columns, length, bytes int64) {
	size, operands := s.element.Size(), int64(2)
	columns, length = 1, longThreads*longVectors*s.vector()
	if kernel == "strips" {
		columns, length = 32, stripWarps*16
		if size == 2 || size == 4 && s.kind == "cumsum" {
			columns = 64
		}
		if size == 8 || s.kind == "cumsum" {
			length = stripWarps * 8
		}
	}
	if s.kind == "cumsum" {
		operands = 1
	}
	return columns, length, columns * length * size * operands
}

// ringFor names the kernel with a ring for so many columns side by side, if there is one for rows of this length. Columns of fewer than 128
// rows are for others, or of 48 where those are slow because they can do everything.
func (s *scanProgram) ringFor(columns int64) string {
	n := s.length()
	if s.rowCount()*n*s.element.Size() < ringLeast || n > ringLongest {
		return ""
	}
	across, _, _ := s.ringTile("strips")
	shortest := int64(128)
	if tamed(s.code()) {
		shortest = 48
	}
	switch {
	case columns >= across && columns%s.vector() == 0 && n >= shortest:
		return "strips"
	case columns == 1 && n%s.vector() == 0 && s.holds(s.code(), "long") && !s.holds(s.code(), "row"):
		return "long"
	}
	return ""
}

// shareRing gives strips, or long rows, to blocks. What a kind cannot do is marked ahead of the states.
func (s *scanProgram) shareRing(kernel string, rows, columns int64) scanShape {
	across, length, _ := s.ringTile(kernel)
	g, blocks := scanShape{kernel: kernel, columns: across, block: stripThreads}, int64(s.units)
	if kernel == "long" {
		g.block, blocks, columns = longThreads, longBlocks*blocks, 1
	}
	g.strips = ceil(columns, across) * (rows / columns)
	g.cut(ceil(max(1, s.length()), length), blocks)
	if g.grid = g.strips * g.parts; g.parts == 1 { // a block takes several strips, while the next tiles come
		g.grid = min(g.grid, blocks)
	}
	if g.marked = tamed(s.code()); g.marked {
		g.marks = align16(4 * g.strips)
	}
	return g
}

// again is how strips that are marked are done by a kernel that can do everything: each in one block, or in parts where it was in some.
func (s *scanProgram) again(ring *scanShape) scanShape {
	g := *ring
	g.kernel, g.shared, g.parts = anyOf[g.kernel], 0, 1
	if g.kernel == "columns" {
		_, down := s.own(s.code())
		g.block, g.width, g.height = scanColumnThreads, 32, scanColumnThreads/32
		g.tiles = ceil(s.length(), down*g.height)
	} else {
		g.block, g.height = scanRowThreads, scanRowThreads/32
		g.tiles = ceil(s.padded(), g.block*s.lane(s.code()))
	}
	if ring.parts > 1 {
		g.cut(g.tiles, scanFill*int64(s.units))
	}
	g.grid = g.strips * g.parts
	return g
}

// fill takes as many tiles into the ring as fit into the shared memory of a block, and reports whether there are enough.
func (s *scanProgram) fill(g *scanShape, shared int) bool {
	_, _, bytes := s.ringTile(g.kernel)
	room := int64(shared) - stripBeside
	if g.kernel == "long" {
		if room = int64(shared)/longBlocks - longBeside; room < 2*bytes { // a block for each multiprocessor then
			room = int64(shared) - longBeside
		}
	}
	g.width = min(room/bytes, ringTiles)
	g.shared = uint32(max(0, g.width*bytes))
	return g.width >= 2
}

// side reports that columns lie side by side in whole aligned vectors in every operand.
func (d *deviceScan) side(args []Tensor) bool {
	if d.dims == 0 || d.extent[0]%d.vector() != 0 {
		return false
	}
	for i, operand := range d.operands {
		if i == 1 && operand == 0 {
			continue
		}
		whole := args[operand].Data%16 == 0 && d.stride[i][0] == 1 && d.step[i]%d.vector() == 0
		for k := 1; k < d.dims; k++ {
			whole = whole && d.stride[i][k]%d.vector() == 0
		}
		if !whole {
			return false
		}
	}
	return true
}

// lies reports that the operands are as a kernel with a ring wants them.
func (d *deviceScan) lies(kernel string, args []Tensor) bool {
	if d.code == "indices" {
		return false
	}
	if kernel == "strips" {
		return d.side(args)
	}
	return d.dense(args, &scanShape{kernel: kernel})
}
