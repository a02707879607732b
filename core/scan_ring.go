package core

// Geometry of cuda/scan_strips.cuh and cuda/scan_long.cuh.
const (
	stripThreads = 512
	stripWarps   = stripThreads / 32
	stripBeside  = 32 << 10 // bytes of shared memory beside the ring, at most
	longThreads  = 256
	longVectors  = 4        // of a thread; twice as many of cumsum
	packet       = 16       // bytes of what blocks tell each other at once,
	told         = 12       // and of the state in it
	sectorBytes  = 32       // that memory hands out at once: where rows do not begin with so many,
	lineBytes    = 128      // tiles of `long` do with these
	ringTiles    = 6        // at most
	ringLongest  = 1 << 30  // elements of a row, which are counted in 32 bits
	ringLeast    = 1 << 20  // bytes of an operand: smaller ones are done by others before these are launched
	wholeMost    = 16 << 20 // bytes of an operand: up to here none is quicker than `columns` where that holds columns whole; of cumsum half of it
	tiledRows    = 4        // rows for each multiprocessor, more of which keep memory busy in a block of tiles each
)

// recorded reports that one launch reads x, and leaves a bit for each element to those that read dy.
func (s *scanProgram) recorded() bool { return s.code() == "cumextremum" }

// longBlocks are those of a multiprocessor that do long rows, the bytes of shared memory that each has beside the ring, at most, and how
// many make a team, at most.
func (s *scanProgram) longBlocks() (blocks, beside, team int64) {
	if s.recorded() {
		return 3, 7 << 10, 2 * longThreads
	}
	return 2, 12 << 10, longThreads
}

// ringTile is how many columns a tile has and how long they are, and its bytes in the ring.
func (s *scanProgram) ringTile(kernel string) (columns, length, bytes int64) {
	size, light := s.element.Size(), s.kind == "cumsum" || s.recorded() // of one operand
	columns, length = 1, longThreads*longVectors*s.vector()
	if s.kind == "cumsum" {
		length *= 2
	}
	if kernel == "strips" {
		columns, length = 32, stripWarps*16
		if size == 2 || size == 4 && light {
			columns = 64
		}
		if size == 8 || s.kind == "cumsum" || size == 4 && light {
			length = stripWarps * 8
		}
	}
	bytes = columns * length * size
	switch {
	case !light:
		bytes *= 2
	case s.recorded():
		bytes += columns * length / 8
	}
	return columns, length, bytes
}

// quicker names the kernels for so many columns side by side that want more of operands, the quickest first. Columns that a block holds
// whole are for others.
func (s *scanProgram) quicker(columns int64) []string {
	n := s.length()
	if s.plain || n > ringLongest {
		return nil
	}
	across, _, _ := s.ringTile("strips")
	_, down := s.own(s.code())
	switch {
	case columns >= across && columns%s.vector() == 0 && n > down*scanColumnThreads/32:
		return s.quickerColumns(columns)
	case s.operandBytes() < ringLeast || columns > 1 || s.holdsRow(s.code()):
		return nil
	case s.piecewise():
		return []string{"pieces", "long"}
	case s.kind == "cumsum" && (s.rowCount() > tiledRows*int64(s.units) || s.walkedTiles(s.code()) <= walkedWhole): // others, too, read these once
		return nil
	}
	return []string{"long"}
}

// quickerColumns leaves to `columns` what a block of it holds whole, as long as the level-2 cache holds the operands, and what it does uncut
// where strips would be cut and take several launches. Slabs are quicker than both of the latter.
func (s *scanProgram) quickerColumns(columns int64) (kernels []string) {
	rows, most := s.rowCount(), int64(wholeMost)
	if s.kind == "cumsum" {
		most /= 2
	}
	whole, strips := s.shareColumns(s.code(), rows, columns), s.shareStrips("", rows, columns)
	if whole.tiles*whole.parts == 1 && s.operandBytes() <= most {
		return nil
	}
	if s.slabwise(columns) {
		kernels = append(kernels, "slabs")
	}
	if s.operandBytes() >= ringLeast && (whole.parts > 1 || strips.parts == 1) {
		kernels = append(kernels, "strips")
	}
	return kernels
}

// operandBytes are those of x.
func (s *scanProgram) operandBytes() int64 { return s.rowCount() * s.length() * s.element.Size() }

// holdsRing says that elements of a row are counted in 32 bits.
func (s *scanProgram) holdsRing(string) bool { return s.length() <= ringLongest }

func (s *scanProgram) shareStrips(_ string, rows, columns int64) scanShape {
	across, length, _ := s.ringTile("strips")
	g := scanShape{kernel: "strips", columns: across, block: stripThreads, beside: 1}
	g.strips = ceil(columns, across) * (rows / columns)
	s.mark(&g, g.strips)
	g.cut(ceil(max(1, s.length()), length), int64(s.units))
	g.grid = g.strips * g.parts
	g.takeTurns(int64(s.units))
	return g
}

func (s *scanProgram) shareLong(_ string, rows, _ int64) scanShape {
	g := scanShape{kernel: "long", columns: 1, block: longThreads, strips: rows}
	g.beside, _, _ = s.longBlocks()
	s.mark(&g, g.strips)
	if s.teams() {
		s.team(&g)
	} else {
		_, length, _ := s.ringTile("long")
		g.cut(ceil(max(1, s.lined()), length), g.beside*int64(s.units))
		g.grid = g.strips * g.parts
	}
	g.takeTurns(int64(s.units))
	return g
}

// takeTurns gives a block several strips that are not cut, the next of which comes meanwhile.
func (g *scanShape) takeTurns(units int64) {
	if g.parts > 1 {
		return
	}
	rounds := func(each int64) int64 { return each * ceil(g.strips, each*units) }
	if g.beside > 2 && rounds(g.beside-1) < rounds(g.beside) { // the last ones then have fewer to wait for
		g.beside--
	}
	g.grid = min(g.strips, g.beside*units)
}

// lined is the length of a row with what may lie ahead of it in its first line.
func (s *scanProgram) lined() int64 {
	if s.length()*s.element.Size()%sectorBytes != 0 {
		return s.length() + lineBytes/s.element.Size() - 1
	}
	return s.length()
}

// team gives a few rows several blocks each, all of which are among so many that the device holds at once.
func (s *scanProgram) team(g *scanShape) {
	_, length, _ := s.ringTile(g.kernel)
	_, _, most := s.longBlocks()
	tiles, blocks := ceil(max(1, s.lined()), length), g.beside*int64(s.units)
	g.parts = clamp(blocks/g.strips, 1, min(tiles, most))
	g.tiles = ceil(tiles, g.parts)
	g.parts = ceil(tiles, g.tiles)
	g.grid, g.height = min(g.strips*g.parts, blocks), g.marks
}

// teams is TEAM of cuda/scan_long.cuh.
func (s *scanProgram) teams() bool {
	size := s.element.Size()
	return s.kind == "cumsum" || s.recorded() || size == 4 || size == 2 && s.kind != "logcumsumexp"
}

// together reports that blocks wait for each other.
func (s *scanProgram) together(g *scanShape) bool {
	return g.kernel == "long" && g.parts > 1 && s.teams() || g.held && !g.clustered()
}

// fillRing takes as many tiles into the ring as fit into the shared memory of a block, and reports whether there are enough.
func (s *scanProgram) fillRing(g *scanShape, device *scanRoom) bool {
	_, _, bytes := s.ringTile(g.kernel)
	shared, least := int64(device.shared), int64(2)
	room := shared - stripBeside
	if s.together(g) { // a tile stays for a turn
		least = 3
	}
	if g.kernel == "long" {
		_, own, _ := s.longBlocks()
		most := g.beside
		for room = shared/g.beside - own; room < least*bytes && g.beside > 1; { // then fewer
			g.beside--
			room = shared/g.beside - own
		}
		if g.beside < most && s.teams() {
			s.team(g)
		}
	}
	g.width = min(room/bytes, ringTiles)
	g.shared = uint32(max(0, g.width*bytes))
	return g.width >= least
}
