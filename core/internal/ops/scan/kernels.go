package scan

import (
	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/tensor"
)

// scanKernel is what the host does about a kernel of scans.
type scanKernel struct {
	Instead string                                                           // of which kernel, the one that does everything, this is a quicker one
	holds   func(s *ScanProgram, code string) bool                           // rows of this length; nil: of any
	share   func(s *ScanProgram, code string, rows, columns int64) ScanShape // gives rows, or columns that lie side by side, to threads
	lies    func(d *deviceScan, kernel string, args []tensor.Tensor) bool    // operands as a quicker one wants them
	Fill    func(s *ScanProgram, g *ScanShape, room *ScanRoom) bool          // takes what there is, which may be too little
}

var ScanKernels = map[string]scanKernel{
	"rows":    {holds: (*ScanProgram).holdsRows, share: (*ScanProgram).shareRows},
	"row":     {holds: (*ScanProgram).holdsRow, share: (*ScanProgram).shareRow},
	"tiles":   {share: (*ScanProgram).shareTiles},
	"columns": {share: (*ScanProgram).shareColumns},
	"strips":  {"columns", (*ScanProgram).holdsRing, (*ScanProgram).shareStrips, (*deviceScan).side, (*ScanProgram).fillRing},
	"long":    {"tiles", (*ScanProgram).holdsRing, (*ScanProgram).shareLong, (*deviceScan).alike, (*ScanProgram).fillRing},
	"slabs":   {"columns", (*ScanProgram).holdsSlabs, (*ScanProgram).shareSlabs, (*deviceScan).side, (*ScanProgram).FillSlabs},
	"pieces":  {"tiles", (*ScanProgram).holdsPieces, (*ScanProgram).sharePieces, (*deviceScan).alike, (*ScanProgram).FillPieces},
}

func (s *ScanProgram) holdsRows(code string) bool {
	held := int64(RowsVectors)
	if Tamed(code) && s.element.Size() < 8 { // by a lane that can do everything
		held /= 2
	}
	return s.Length() <= 32*held*s.Vector()
}

func (s *ScanProgram) holdsRow(code string) bool {
	return s.Padded() <= ScanRowThreads*s.Lane(code)
}

func (s *ScanProgram) shareRows(_ string, rows, _ int64) ScanShape {
	g, n := s.wholeRows("rows", rows), max(1, s.Length())
	g.Width, g.Block = 32*RowsVectors*s.Vector()/n, ScanRowsThreads
	if whole := s.Vector() / num.GCD(s.Vector(), n); g.Width >= whole { // rows that begin with an aligned vector
		g.Width -= g.Width % whole
	}
	g.Grid = num.CeilDiv(rows, g.Block/32*g.Width)
	return g
}

func (s *ScanProgram) shareRow(code string, rows, _ int64) ScanShape {
	g := s.wholeRows("row", rows)
	g.Height, g.Width = num.CeilDiv(s.Padded(), 32*s.Lane(code)), 1
	if g.Height&(g.Height-1) == 0 && g.Height <= 4 {
		g.Width = 8 / g.Height
	}
	g.Block, g.Grid = 32*g.Height*g.Width, num.CeilDiv(rows, g.Width)
	return g
}

// walkedTiles are those of a row in `tiles`.
func (s *ScanProgram) walkedTiles(code string) int64 {
	return num.CeilDiv(max(1, s.Padded()), ScanRowThreads*s.Walked(code))
}

func (s *ScanProgram) shareTiles(code string, rows, _ int64) ScanShape {
	g := s.wholeRows("tiles", rows)
	g.Block, g.Height = ScanRowThreads, ScanRowThreads/32
	if g.Tiles = s.walkedTiles(code); g.Tiles > walkedWhole {
		g.cut(g.Tiles, scanFill*int64(s.Units))
	}
	g.Grid = g.Strips * g.Parts
	return g
}

func (s *ScanProgram) shareColumns(code string, rows, columns int64) ScanShape {
	g, n := s.wholeRows("columns", rows), max(1, s.Length())
	across, down := s.Own(code)
	most := narrowStrip / s.element.Size()
	g.Width = min(num.Pow2(num.CeilDiv(columns, across)), 32)
	for g.Width*across > most && num.CeilDiv(columns, g.Width*across)*(rows/columns) < scanFill*int64(s.Units) {
		g.Width /= 2
	}
	g.Height = min(num.Pow2(num.CeilDiv(n, down)), ScanColumnThreads/g.Width)
	g.Columns = g.Width * across
	if g.Width*g.Height > 32 { // a thread for what enters each column
		g.Height = max(g.Height, across)
	}
	g.Strips = num.CeilDiv(columns, g.Columns) * (rows / columns)
	if g.Block = g.Width * g.Height; g.Block <= 32 {
		g.Block = 128
		g.Grid = num.CeilDiv(g.Strips, g.Block/(g.Width*g.Height))
		g.Shared = s.columnRoom(code, g.Block)
		return g
	}
	g.Shared = s.columnRoom(code, g.Block)
	g.cut(num.CeilDiv(n, down*g.Height), scanFill*int64(s.Units))
	if g.Grid = g.Strips * g.Parts; g.Tiles*g.Parts > 1 {
		s.mark(&g, g.Strips)
	}
	return g
}

// wholeRows are as many strips, each of one tile.
func (s *ScanProgram) wholeRows(kernel string, rows int64) ScanShape {
	return ScanShape{Kernel: kernel, Tiles: 1, Parts: 1, Strips: rows, Columns: 1, marks: s.badBytes()}
}

// columnRoom is the shared memory of a block of `columns`: states of each column, those that enter a tile and those of each warp.
func (s *ScanProgram) columnRoom(code string, block int64) uint32 {
	across, _ := s.Own(code)
	state := scanStates[code][s.element.Size()/8]
	return uint32((1 + block/32) * (32*across*(state.head+state.tail) + 16))
}

// Own is kAcross (in elements) and kDown of cuda/scan_outer.cuh.
func (s *ScanProgram) Own(code string) (across, down int64) {
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
func (g *ScanShape) cut(tiles, blocks int64) {
	g.Parts = num.Clamp((blocks+g.Strips/2)/g.Strips, 1, tiles)
	g.Tiles = num.CeilDiv(tiles, g.Parts)
	g.Parts = num.CeilDiv(tiles, g.Tiles)
}
