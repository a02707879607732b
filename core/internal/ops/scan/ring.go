package scan

import "github.com/sternway/sternway/core/internal/num"

// Geometry of cuda/scan_strips.cuh and cuda/scan_long.cuh.
const (
	StripThreads = 512
	stripWarps   = StripThreads / 32
	StripBeside  = 32 << 10 // bytes of shared memory beside the ring, at most
	LongThreads  = 256
	longVectors  = 4        // of a thread; twice as many of cumsum
	packet       = 16       // bytes of what blocks tell each other at once,
	told         = 12       // and of the state in it
	sectorBytes  = 32       // that memory hands out at once: where rows do not begin with so many,
	LineBytes    = 128      // tiles of `long` do with these
	ringTiles    = 6        // at most
	ringLongest  = 1 << 30  // elements of a row, which are counted in 32 bits
	ringLeast    = 1 << 20  // bytes of an operand: smaller ones are done by others before these are launched
	wholeMost    = 16 << 20 // bytes of an operand: up to here none is quicker than `columns` where that holds columns whole; of cumsum half of it
	tiledRows    = 4        // rows for each multiprocessor, more of which keep memory busy in a block of tiles each
)

// recorded reports that one launch reads x, and leaves a bit for each element to those that read dy.
func (s *ScanProgram) recorded() bool { return s.Code() == "cumextremum" }

// LongBlocks are those of a multiprocessor that do long rows, the bytes of shared memory that each has beside the ring, at most, and how
// many make a team, at most.
func (s *ScanProgram) LongBlocks() (blocks, beside, team int64) {
	if s.recorded() {
		return 3, 7 << 10, 2 * LongThreads
	}
	return 2, 12 << 10, LongThreads
}

// RingTile is how many columns a tile has and how long they are, and its bytes in the ring.
func (s *ScanProgram) RingTile(kernel string) (columns, length, bytes int64) {
	size, light := s.element.Size(), s.kind == "cumsum" || s.recorded() // of one operand
	columns, length = 1, LongThreads*longVectors*s.Vector()
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
func (s *ScanProgram) quicker(columns int64) []string {
	n := s.Length()
	if s.plain || n > ringLongest {
		return nil
	}
	across, _, _ := s.RingTile("strips")
	_, down := s.Own(s.Code())
	switch {
	case columns >= across && columns%s.Vector() == 0 && n > down*ScanColumnThreads/32:
		return s.quickerColumns(columns)
	case s.operandBytes() < ringLeast || columns > 1 || s.holdsRow(s.Code()):
		return nil
	case s.piecewise():
		return []string{"pieces", "long"}
	case s.kind == "cumsum" && (s.RowCount() > tiledRows*int64(s.Units) || s.walkedTiles(s.Code()) <= walkedWhole): // others, too, read these once
		return nil
	}
	return []string{"long"}
}

// quickerColumns leaves to `columns` what a block of it holds whole, as long as the level-2 cache holds the operands, and what it does uncut
// where strips would be cut and take several launches. Slabs are quicker than both of the latter.
func (s *ScanProgram) quickerColumns(columns int64) (kernels []string) {
	rows, most := s.RowCount(), int64(wholeMost)
	if s.kind == "cumsum" {
		most /= 2
	}
	whole, strips := s.shareColumns(s.Code(), rows, columns), s.shareStrips("", rows, columns)
	if whole.Tiles*whole.Parts == 1 && s.operandBytes() <= most {
		return nil
	}
	if s.slabwise(columns) {
		kernels = append(kernels, "slabs")
	}
	if s.operandBytes() >= ringLeast && (whole.Parts > 1 || strips.Parts == 1) {
		kernels = append(kernels, "strips")
	}
	return kernels
}

// operandBytes are those of x.
func (s *ScanProgram) operandBytes() int64 { return s.RowCount() * s.Length() * s.element.Size() }

// holdsRing says that elements of a row are counted in 32 bits.
func (s *ScanProgram) holdsRing(string) bool { return s.Length() <= ringLongest }

func (s *ScanProgram) shareStrips(_ string, rows, columns int64) ScanShape {
	across, length, _ := s.RingTile("strips")
	g := ScanShape{Kernel: "strips", Columns: across, Block: StripThreads, Beside: 1}
	g.Strips = num.CeilDiv(columns, across) * (rows / columns)
	s.mark(&g, g.Strips)
	g.cut(num.CeilDiv(max(1, s.Length()), length), int64(s.Units))
	g.Grid = g.Strips * g.Parts
	g.takeTurns(int64(s.Units))
	return g
}

func (s *ScanProgram) shareLong(_ string, rows, _ int64) ScanShape {
	g := ScanShape{Kernel: "long", Columns: 1, Block: LongThreads, Strips: rows}
	g.Beside, _, _ = s.LongBlocks()
	s.mark(&g, g.Strips)
	if s.teams() {
		s.team(&g)
	} else {
		_, length, _ := s.RingTile("long")
		g.cut(num.CeilDiv(max(1, s.lined()), length), g.Beside*int64(s.Units))
		g.Grid = g.Strips * g.Parts
	}
	g.takeTurns(int64(s.Units))
	return g
}

// takeTurns gives a block several strips that are not cut, the next of which comes meanwhile.
func (g *ScanShape) takeTurns(units int64) {
	if g.Parts > 1 {
		return
	}
	rounds := func(each int64) int64 { return each * num.CeilDiv(g.Strips, each*units) }
	if g.Beside > 2 && rounds(g.Beside-1) < rounds(g.Beside) { // the last ones then have fewer to wait for
		g.Beside--
	}
	g.Grid = min(g.Strips, g.Beside*units)
}

// lined is the length of a row with what may lie ahead of it in its first line.
func (s *ScanProgram) lined() int64 {
	if s.Length()*s.element.Size()%sectorBytes != 0 {
		return s.Length() + LineBytes/s.element.Size() - 1
	}
	return s.Length()
}

// team gives a few rows several blocks each, all of which are among so many that the device holds at once.
func (s *ScanProgram) team(g *ScanShape) {
	_, length, _ := s.RingTile(g.Kernel)
	_, _, most := s.LongBlocks()
	tiles, blocks := num.CeilDiv(max(1, s.lined()), length), g.Beside*int64(s.Units)
	g.Parts = num.Clamp(blocks/g.Strips, 1, min(tiles, most))
	g.Tiles = num.CeilDiv(tiles, g.Parts)
	g.Parts = num.CeilDiv(tiles, g.Tiles)
	g.Grid, g.Height = min(g.Strips*g.Parts, blocks), g.marks
}

// teams is TEAM of cuda/scan_long.cuh.
func (s *ScanProgram) teams() bool {
	size := s.element.Size()
	return s.kind == "cumsum" || s.recorded() || size == 4 || size == 2 && s.kind != "logcumsumexp"
}

// Together reports that blocks wait for each other.
func (s *ScanProgram) Together(g *ScanShape) bool {
	return g.Kernel == "long" && g.Parts > 1 && s.teams() || g.held && !g.Clustered()
}

// fillRing takes as many tiles into the ring as fit into the shared memory of a block, and reports whether there are enough.
func (s *ScanProgram) fillRing(g *ScanShape, device *ScanRoom) bool {
	_, _, bytes := s.RingTile(g.Kernel)
	shared, least := int64(device.Shared), int64(2)
	room := shared - StripBeside
	if s.Together(g) { // a tile stays for a turn
		least = 3
	}
	if g.Kernel == "long" {
		_, own, _ := s.LongBlocks()
		most := g.Beside
		for room = shared/g.Beside - own; room < least*bytes && g.Beside > 1; { // then fewer
			g.Beside--
			room = shared/g.Beside - own
		}
		if g.Beside < most && s.teams() {
			s.team(g)
		}
	}
	g.Width = min(room/bytes, ringTiles)
	g.Shared = uint32(max(0, g.Width*bytes))
	return g.Width >= least
}
