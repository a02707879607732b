package scan

import "github.com/sternway/sternway/core/internal/num"

// Geometry of cuda/scan_strips.cuh and cuda/scan_long.cuh.
const (
	ColumnPipelinedThreads    = 512
	columnPipelinedWarps      = ColumnPipelinedThreads / 32
	ColumnPipelinedStaticSmem = 32 << 10 // bytes of shared memory beside the ring, at most
	RowPipelinedThreads       = 256
	rowPipelinedVectors       = 4        // of a thread; twice as many of cumsum
	statusBytes               = 16       // bytes of what blocks tell each other at once,
	statusPayload             = 12       // and of the state in it
	sectorBytes               = 32       // that memory hands out at once: where rows do not begin with so many,
	LineBytes                 = 128      // tiles of `long` do with these
	maxStages                 = 6        // at most
	maxPipelinedLength        = 1 << 30  // elements of a row, which are counted in 32 bits
	minPipelinedBytes         = 1 << 20  // bytes of an operand: smaller ones are done by others before these are launched
	maxCachedBytes            = 16 << 20 // bytes of an operand: up to here none is quicker than `columns` where that holds columns whole; of cumsum half of it
	saturatingRowsPerSM       = 4        // rows for each multiprocessor, more of which keep memory busy in a block of tiles each
)

// hasRecords reports that one launch reads x, and leaves a bit for each element to those that read dy.
func (s *Program) hasRecords() bool { return s.Code() == "cumextremum" }

// RowPipelinedLimits are those of a multiprocessor that do long rows, the bytes of shared memory that each has beside the ring, at most, and how
// many make a team, at most.
func (s *Program) RowPipelinedLimits() (blocks, beside, shareAmongCTAs int64) {
	if s.hasRecords() {
		return 3, 7 << 10, 2 * RowPipelinedThreads
	}
	return 2, 12 << 10, RowPipelinedThreads
}

// PipelinedTile is how many columns a tile has and how long they are, and its bytes in the ring.
func (s *Program) PipelinedTile(kernel string) (columns, length, bytes int64) {
	size, light := s.element.Size(), s.kind == "cumsum" || s.hasRecords() // of one operand
	columns, length = 1, RowPipelinedThreads*rowPipelinedVectors*s.Vector()
	if s.kind == "cumsum" {
		length *= 2
	}
	if kernel == "strips" {
		columns, length = 32, columnPipelinedWarps*16
		if size == 2 || size == 4 && light {
			columns = 64
		}
		if size == 8 || s.kind == "cumsum" || size == 4 && light {
			length = columnPipelinedWarps * 8
		}
	}
	bytes = columns * length * size
	switch {
	case !light:
		bytes *= 2
	case s.hasRecords():
		bytes += columns * length / 8
	}
	return columns, length, bytes
}

// candidates names the kernels for so many columns side by side that want more of operands, the quickest first. Columns that a block holds
// whole are for others.
func (s *Program) candidates(columns int64) []string {
	n := s.Length()
	if s.generalOnly || n > maxPipelinedLength {
		return nil
	}
	across, _, _ := s.PipelinedTile("strips")
	_, down := s.ThreadTile(s.Code())
	switch {
	case columns >= across && columns%s.Vector() == 0 && n > down*ColumnThreads/32:
		return s.columnCandidates(columns)
	case s.operandBytes() < minPipelinedBytes || columns > 1 || s.supportsLengthRowResident(s.Code()):
		return nil
	case s.prefersRowCluster():
		return []string{"pieces", "long"}
	case s.kind == "cumsum" && (s.RowCount() > saturatingRowsPerSM*int64(s.NumSMs) || s.tilesPerRow(s.Code()) <= maxUnsplitTiles): // others, too, read these once
		return nil
	}
	return []string{"long"}
}

// columnCandidates leaves to `columns` what a block of it holds whole, as long as the level-2 cache holds the operands, and what it does uncut
// where strips would be cut and take several launches. Slabs are quicker than both of the latter.
func (s *Program) columnCandidates(columns int64) (kernels []string) {
	rows, most := s.RowCount(), int64(maxCachedBytes)
	if s.kind == "cumsum" {
		most /= 2
	}
	whole, strips := s.configureColumnTiled(s.Code(), rows, columns), s.configureColumnPipelined("", rows, columns)
	if whole.TilesPerSplit*whole.Splits == 1 && s.operandBytes() <= most {
		return nil
	}
	if s.prefersColumnCluster(columns) {
		kernels = append(kernels, "slabs")
	}
	if s.operandBytes() >= minPipelinedBytes && (whole.Splits > 1 || strips.Splits == 1) {
		kernels = append(kernels, "strips")
	}
	return kernels
}

// operandBytes are those of x.
func (s *Program) operandBytes() int64 { return s.RowCount() * s.Length() * s.element.Size() }

// supportsLengthPipelined says that elements of a row are counted in 32 bits.
func (s *Program) supportsLengthPipelined(string) bool { return s.Length() <= maxPipelinedLength }

func (s *Program) configureColumnPipelined(_ string, rows, columns int64) Config {
	across, length, _ := s.PipelinedTile("strips")
	g := Config{Kernel: "strips", Columns: across, Block: ColumnPipelinedThreads, CTAsPerSM: 1}
	g.Segments = num.CeilDiv(columns, across) * (rows / columns)
	s.reserveFlags(&g, g.Segments)
	g.split(num.CeilDiv(max(1, s.Length()), length), int64(s.NumSMs))
	g.Grid = g.Segments * g.Splits
	g.loopOverSegments(int64(s.NumSMs))
	return g
}

func (s *Program) configureRowPipelined(_ string, rows, _ int64) Config {
	g := Config{Kernel: "long", Columns: 1, Block: RowPipelinedThreads, Segments: rows}
	g.CTAsPerSM, _, _ = s.RowPipelinedLimits()
	s.reserveFlags(&g, g.Segments)
	if s.cooperates() {
		s.shareAmongCTAs(&g)
	} else {
		_, length, _ := s.PipelinedTile("long")
		g.split(num.CeilDiv(max(1, s.lineAlignedLength()), length), g.CTAsPerSM*int64(s.NumSMs))
		g.Grid = g.Segments * g.Splits
	}
	g.loopOverSegments(int64(s.NumSMs))
	return g
}

// loopOverSegments gives a block several strips that are not cut, the next of which comes meanwhile.
func (g *Config) loopOverSegments(units int64) {
	if g.Splits > 1 {
		return
	}
	rounds := func(each int64) int64 { return each * num.CeilDiv(g.Segments, each*units) }
	if g.CTAsPerSM > 2 && rounds(g.CTAsPerSM-1) < rounds(g.CTAsPerSM) { // the last ones then have fewer to wait for
		g.CTAsPerSM--
	}
	g.Grid = min(g.Segments, g.CTAsPerSM*units)
}

// lineAlignedLength is the length of a row with what may lie ahead of it in its first line.
func (s *Program) lineAlignedLength() int64 {
	if s.Length()*s.element.Size()%sectorBytes != 0 {
		return s.Length() + LineBytes/s.element.Size() - 1
	}
	return s.Length()
}

// shareAmongCTAs gives a few rows several blocks each, all of which are among so many that the device holds at once.
func (s *Program) shareAmongCTAs(g *Config) {
	_, length, _ := s.PipelinedTile(g.Kernel)
	_, _, most := s.RowPipelinedLimits()
	tiles, blocks := num.CeilDiv(max(1, s.lineAlignedLength()), length), g.CTAsPerSM*int64(s.NumSMs)
	g.Splits = num.Clamp(blocks/g.Segments, 1, min(tiles, most))
	g.TilesPerSplit = num.CeilDiv(tiles, g.Splits)
	g.Splits = num.CeilDiv(tiles, g.TilesPerSplit)
	g.Grid, g.Height = min(g.Segments*g.Splits, blocks), g.flagBytes
}

// cooperates is TEAM of cuda/scan_long.cuh.
func (s *Program) cooperates() bool {
	size := s.element.Size()
	return s.kind == "cumsum" || s.hasRecords() || size == 4 || size == 2 && s.kind != "logcumsumexp"
}

// Cooperative reports that blocks wait for each other.
func (s *Program) Cooperative(g *Config) bool {
	return g.Kernel == "long" && g.Splits > 1 && s.cooperates() || g.resident && !g.InCluster()
}

// fitPipelined takes as many tiles into the ring as fit into the shared memory of a block, and reports whether there are enough.
func (s *Program) fitPipelined(g *Config, device *DeviceLimits) bool {
	_, _, bytes := s.PipelinedTile(g.Kernel)
	shared, least := int64(device.SmemBytes), int64(2)
	room := shared - ColumnPipelinedStaticSmem
	if s.Cooperative(g) { // a tile stays for a turn
		least = 3
	}
	if g.Kernel == "long" {
		_, own, _ := s.RowPipelinedLimits()
		most := g.CTAsPerSM
		for room = shared/g.CTAsPerSM - own; room < least*bytes && g.CTAsPerSM > 1; { // then fewer
			g.CTAsPerSM--
			room = shared/g.CTAsPerSM - own
		}
		if g.CTAsPerSM < most && s.cooperates() {
			s.shareAmongCTAs(g)
		}
	}
	g.Width = min(room/bytes, maxStages)
	g.SmemBytes = uint32(max(0, g.Width*bytes))
	return g.Width >= least
}
