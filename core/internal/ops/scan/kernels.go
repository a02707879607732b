package scan

import (
	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/tensor"
)

// strategy is what the host does about a kernel of scans.
type strategy struct {
	Baseline       string                                                       // of which kernel, the one that does everything, this is a quicker one
	supportsLength func(s *Program, code string) bool                           // rows of this length; nil: of any
	configure      func(s *Program, code string, rows, columns int64) Config    // gives rows, or columns that lie side by side, to threads
	supportsLayout func(d *deviceRun, kernel string, args []tensor.Tensor) bool // operands as a quicker one wants them
	FitToDevice    func(s *Program, g *Config, room *DeviceLimits) bool         // takes what there is, which may be too little
}

var Strategies = map[string]strategy{
	"rows":    {supportsLength: (*Program).supportsLengthRowPacked, configure: (*Program).configureRowPacked},
	"row":     {supportsLength: (*Program).supportsLengthRowResident, configure: (*Program).configureRowResident},
	"tiles":   {configure: (*Program).configureRowTiled},
	"columns": {configure: (*Program).configureColumnTiled},
	"strips":  {"columns", (*Program).supportsLengthPipelined, (*Program).configureColumnPipelined, (*deviceRun).columnsContiguous, (*Program).fitPipelined},
	"long":    {"tiles", (*Program).supportsLengthPipelined, (*Program).configureRowPipelined, (*deviceRun).sameDirection, (*Program).fitPipelined},
	"slabs":   {"columns", (*Program).supportsLengthColumnCluster, (*Program).configureColumnCluster, (*deviceRun).columnsContiguous, (*Program).FitColumnCluster},
	"pieces":  {"tiles", (*Program).supportsLengthRowCluster, (*Program).configureRowCluster, (*deviceRun).sameDirection, (*Program).FitRowCluster},
}

func (s *Program) supportsLengthRowPacked(code string) bool {
	resident := int64(RowPackedVectors)
	if HasFastPath(code) && s.element.Size() < 8 { // by a lane that can do everything
		resident /= 2
	}
	return s.Length() <= 32*resident*s.Vector()
}

func (s *Program) supportsLengthRowResident(code string) bool {
	return s.PaddedLength() <= RowThreads*s.ItemsPerThread(code)
}

func (s *Program) configureRowPacked(_ string, rows, _ int64) Config {
	g, n := s.unsplit("rows", rows), max(1, s.Length())
	g.Width, g.Block = 32*RowPackedVectors*s.Vector()/n, RowPackedThreads
	if whole := s.Vector() / num.GCD(s.Vector(), n); g.Width >= whole { // rows that begin with an aligned vector
		g.Width -= g.Width % whole
	}
	g.Grid = num.CeilDiv(rows, g.Block/32*g.Width)
	return g
}

func (s *Program) configureRowResident(code string, rows, _ int64) Config {
	g := s.unsplit("row", rows)
	g.Height, g.Width = num.CeilDiv(s.PaddedLength(), 32*s.ItemsPerThread(code)), 1
	if g.Height&(g.Height-1) == 0 && g.Height <= 4 {
		g.Width = 8 / g.Height
	}
	g.Block, g.Grid = 32*g.Height*g.Width, num.CeilDiv(rows, g.Width)
	return g
}

// tilesPerRow are those of a row in `tiles`.
func (s *Program) tilesPerRow(code string) int64 {
	return num.CeilDiv(max(1, s.PaddedLength()), RowThreads*s.TiledItemsPerThread(code))
}

func (s *Program) configureRowTiled(code string, rows, _ int64) Config {
	g := s.unsplit("tiles", rows)
	g.Block, g.Height = RowThreads, RowThreads/32
	if g.TilesPerSplit = s.tilesPerRow(code); g.TilesPerSplit > maxUnsplitTiles {
		g.split(g.TilesPerSplit, fillCTAsPerSM*int64(s.NumSMs))
	}
	g.Grid = g.Segments * g.Splits
	return g
}

func (s *Program) configureColumnTiled(code string, rows, columns int64) Config {
	g, n := s.unsplit("columns", rows), max(1, s.Length())
	across, down := s.ThreadTile(code)
	most := minPanelBytes / s.element.Size()
	g.Width = min(num.Pow2(num.CeilDiv(columns, across)), 32)
	for g.Width*across > most && num.CeilDiv(columns, g.Width*across)*(rows/columns) < fillCTAsPerSM*int64(s.NumSMs) {
		g.Width /= 2
	}
	g.Height = min(num.Pow2(num.CeilDiv(n, down)), ColumnThreads/g.Width)
	g.Columns = g.Width * across
	if g.Width*g.Height > 32 { // a thread for what enters each column
		g.Height = max(g.Height, across)
	}
	g.Segments = num.CeilDiv(columns, g.Columns) * (rows / columns)
	if g.Block = g.Width * g.Height; g.Block <= 32 {
		g.Block = 128
		g.Grid = num.CeilDiv(g.Segments, g.Block/(g.Width*g.Height))
		g.SmemBytes = s.columnSmemBytes(code, g.Block)
		return g
	}
	g.SmemBytes = s.columnSmemBytes(code, g.Block)
	g.split(num.CeilDiv(n, down*g.Height), fillCTAsPerSM*int64(s.NumSMs))
	if g.Grid = g.Segments * g.Splits; g.TilesPerSplit*g.Splits > 1 {
		s.reserveFlags(&g, g.Segments)
	}
	return g
}

// unsplit are as many strips, each of one tile.
func (s *Program) unsplit(kernel string, rows int64) Config {
	return Config{Kernel: kernel, TilesPerSplit: 1, Splits: 1, Segments: rows, Columns: 1, flagBytes: s.indexFlagBytes()}
}

// columnSmemBytes is the shared memory of a block of `columns`: states of each column, those that enter a tile and those of each warp.
func (s *Program) columnSmemBytes(code string, block int64) uint32 {
	across, _ := s.ThreadTile(code)
	state := stateSizes[code][s.element.Size()/8]
	return uint32((1 + block/32) * (32*across*(state.head+state.tail) + 16))
}

// ThreadTile is kAcross (in elements) and kDown of cuda/scan_outer.cuh.
func (s *Program) ThreadTile(code string) (across, down int64) {
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

// split makes parts of strips of so many tiles, where there are too few strips for so many blocks. Parts cost more launches, each of which
// reads its inputs again, so that strips that are nearly enough stay whole.
func (g *Config) split(tiles, blocks int64) {
	g.Splits = num.Clamp((blocks+g.Segments/2)/g.Segments, 1, tiles)
	g.TilesPerSplit = num.CeilDiv(tiles, g.Splits)
	g.Splits = num.CeilDiv(tiles, g.TilesPerSplit)
}
