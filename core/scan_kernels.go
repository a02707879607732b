package core

// scanKernel is what the host does about a kernel of scans.
type scanKernel struct {
	instead string                                                           // of which kernel, the one that does everything, this is a quicker one
	holds   func(s *scanProgram, code string) bool                           // rows of this length; nil: of any
	share   func(s *scanProgram, code string, rows, columns int64) scanShape // gives rows, or columns that lie side by side, to threads
	lies    func(d *deviceScan, kernel string, args []Tensor) bool           // operands as a quicker one wants them
	fill    func(s *scanProgram, g *scanShape, room *scanRoom) bool          // takes what there is, which may be too little
}

var scanKernels = map[string]scanKernel{
	"rows":    {holds: (*scanProgram).holdsRows, share: (*scanProgram).shareRows},
	"row":     {holds: (*scanProgram).holdsRow, share: (*scanProgram).shareRow},
	"tiles":   {share: (*scanProgram).shareTiles},
	"columns": {share: (*scanProgram).shareColumns},
	"strips":  {"columns", (*scanProgram).holdsRing, (*scanProgram).shareStrips, (*deviceScan).side, (*scanProgram).fillRing},
	"long":    {"tiles", (*scanProgram).holdsRing, (*scanProgram).shareLong, (*deviceScan).alike, (*scanProgram).fillRing},
	"slabs":   {"columns", (*scanProgram).holdsSlabs, (*scanProgram).shareSlabs, (*deviceScan).side, (*scanProgram).fillSlabs},
	"pieces":  {"tiles", (*scanProgram).holdsPieces, (*scanProgram).sharePieces, (*deviceScan).alike, (*scanProgram).fillPieces},
}

func (s *scanProgram) holdsRows(code string) bool {
	held := int64(rowsVectors)
	if tamed(code) && s.element.Size() < 8 { // by a lane that can do everything
		held /= 2
	}
	return s.length() <= 32*held*s.vector()
}

func (s *scanProgram) holdsRow(code string) bool {
	return s.padded() <= scanRowThreads*s.lane(code)
}

func (s *scanProgram) shareRows(_ string, rows, _ int64) scanShape {
	g, n := s.wholeRows("rows", rows), max(1, s.length())
	g.width, g.block = 32*rowsVectors*s.vector()/n, scanRowsThreads
	if whole := s.vector() / gcd(s.vector(), n); g.width >= whole { // rows that begin with an aligned vector
		g.width -= g.width % whole
	}
	g.grid = ceil(rows, g.block/32*g.width)
	return g
}

func (s *scanProgram) shareRow(code string, rows, _ int64) scanShape {
	g := s.wholeRows("row", rows)
	g.height, g.width = ceil(s.padded(), 32*s.lane(code)), 1
	if g.height&(g.height-1) == 0 && g.height <= 4 {
		g.width = 8 / g.height
	}
	g.block, g.grid = 32*g.height*g.width, ceil(rows, g.width)
	return g
}

// walkedTiles are those of a row in `tiles`.
func (s *scanProgram) walkedTiles(code string) int64 {
	return ceil(max(1, s.padded()), scanRowThreads*s.walked(code))
}

func (s *scanProgram) shareTiles(code string, rows, _ int64) scanShape {
	g := s.wholeRows("tiles", rows)
	g.block, g.height = scanRowThreads, scanRowThreads/32
	if g.tiles = s.walkedTiles(code); g.tiles > walkedWhole {
		g.cut(g.tiles, scanFill*int64(s.units))
	}
	g.grid = g.strips * g.parts
	return g
}

func (s *scanProgram) shareColumns(code string, rows, columns int64) scanShape {
	g, n := s.wholeRows("columns", rows), max(1, s.length())
	across, down := s.own(code)
	most := narrowStrip / s.element.Size()
	g.width = min(pow2(ceil(columns, across)), 32)
	for g.width*across > most && ceil(columns, g.width*across)*(rows/columns) < scanFill*int64(s.units) {
		g.width /= 2
	}
	g.height = min(pow2(ceil(n, down)), scanColumnThreads/g.width)
	g.columns = g.width * across
	if g.width*g.height > 32 { // a thread for what enters each column
		g.height = max(g.height, across)
	}
	g.strips = ceil(columns, g.columns) * (rows / columns)
	if g.block = g.width * g.height; g.block <= 32 {
		g.block = 128
		g.grid = ceil(g.strips, g.block/(g.width*g.height))
		g.shared = s.columnRoom(code, g.block)
		return g
	}
	g.shared = s.columnRoom(code, g.block)
	g.cut(ceil(n, down*g.height), scanFill*int64(s.units))
	if g.grid = g.strips * g.parts; g.tiles*g.parts > 1 {
		s.mark(&g, g.strips)
	}
	return g
}

// wholeRows are as many strips, each of one tile.
func (s *scanProgram) wholeRows(kernel string, rows int64) scanShape {
	return scanShape{kernel: kernel, tiles: 1, parts: 1, strips: rows, columns: 1, marks: s.badBytes()}
}

// columnRoom is the shared memory of a block of `columns`: states of each column, those that enter a tile and those of each warp.
func (s *scanProgram) columnRoom(code string, block int64) uint32 {
	across, _ := s.own(code)
	state := scanStates[code][s.element.Size()/8]
	return uint32((1 + block/32) * (32*across*(state.head+state.tail) + 16))
}

// own is kAcross (in elements) and kDown of cuda/scan_outer.cuh.
func (s *scanProgram) own(code string) (across, down int64) {
	size := s.element.Size()
	switch {
	case size == 8:
		return 1, 8
	case code == "cumsum":
		return 8 / size, 8
	case size == 2 && code != "cumextremum":
		return 2, 8
	}
	return 4 / size, 16
}

// cut makes parts of strips of so many tiles, where there are too few strips for so many blocks. Parts cost more launches, each of which
// reads its inputs again, so that strips that are nearly enough stay whole.
func (g *scanShape) cut(tiles, blocks int64) {
	g.parts = clamp((blocks+g.strips/2)/g.strips, 1, tiles)
	g.tiles = ceil(tiles, g.parts)
	g.parts = ceil(tiles, g.tiles)
}
