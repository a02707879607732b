package gpu

import "github.com/sternway/sternway/core/internal/num"

// The general kernels take any layout: row_packed and row_resident rows that fit registers,
// row_tiled and column_tiled any length.

func supportsLengthRowPacked(p *Problem) bool {
	return p.Length <= warpThreads*p.Kind.RowPackedVectors.Of(p)*p.Vector()
}

func supportsLengthRowResident(p *Problem) bool {
	items := RowItems(p)
	if p.Kind.isPacked {
		items = min(items, TransposedVectors*p.Vector())
	}
	return p.PaddedLength() <= RowResidentThreads*items
}

// RowItems is the number of elements of a thread of row_resident.
func RowItems(p *Problem) int64 { return p.Kind.RowResidentVectors.Of(p) * p.Vector() }

// TiledItems is the number of elements of a thread in a tile of row_tiled.
func TiledItems(p *Problem) int64 { return p.Kind.RowTiledVectors.Of(p) * p.Vector() }

// tiledThreads is the number of threads of a CTA of row_tiled, and the most of column_tiled.
func tiledThreads(p *Problem) int64 {
	if p.Kind.isPacked && p.Kind.hasPrefix {
		return PackedTiledThreads
	}
	return RowResidentThreads
}

// tilesPerRow is the number of tiles of a row in row_tiled.
func tilesPerRow(p *Problem) int64 {
	return num.CeilDiv(max(1, p.PaddedLength()), tiledThreads(p)*TiledItems(p))
}

// unsplit is a configuration with one segment per row and one tile per segment.
func unsplit(p *Problem, kernel string) Config {
	return Config{Kernel: kernel, TilesPerSplit: 1, Splits: 1, Segments: p.Rows, PanelColumns: 1, FlagBytes: max(IndexFlagBytes(p), headBytes(p))}
}

func configureRowPacked(p *Problem, _ int64) Config {
	c, n := unsplit(p, RowPacked), max(1, p.Length)
	c.RowsPerWarp, c.Block = warpThreads*RowPackedVectors*p.Vector()/n, RowPackedThreads
	if aligned := p.Vector() / num.GCD(p.Vector(), n); c.RowsPerWarp >= aligned { // a warp begins with an aligned vector
		c.RowsPerWarp -= c.RowsPerWarp % aligned
	}
	c.Grid = num.CeilDiv(p.Rows, c.Block/warpThreads*c.RowsPerWarp)
	return c
}

func configureRowResident(p *Problem, _ int64) Config {
	c := unsplit(p, RowResident)
	c.WarpsPerRow, c.RowsPerCTA = num.CeilDiv(p.PaddedLength(), warpThreads*RowItems(p)), 1
	if c.WarpsPerRow&(c.WarpsPerRow-1) == 0 && c.WarpsPerRow <= 4 {
		c.RowsPerCTA = 8 / c.WarpsPerRow
	}
	c.Block, c.Grid = warpThreads*c.WarpsPerRow*c.RowsPerCTA, num.CeilDiv(p.Rows, c.RowsPerCTA)
	return c
}

func configureRowTiled(p *Problem, _ int64) Config {
	c := unsplit(p, RowTiled)
	c.Block = tiledThreads(p)
	if c.TilesPerSplit = tilesPerRow(p); c.TilesPerSplit > maxUnsplitTiles {
		c.split(c.TilesPerSplit, fillCTAsPerSM*p.Device.NumSMs)
	}
	c.Grid = c.Segments * c.Splits
	return c
}

// configureColumnTiled makes panels as wide as a warp, and narrower if there are too few of them to
// occupy the device.
func configureColumnTiled(p *Problem, columns int64) Config {
	c, n := unsplit(p, ColumnTiled), max(1, p.Length)
	columnsOfThread, rowsOfThread := p.Kind.ColumnTiledColumns.Of(p), p.Kind.ColumnTiledRows.Of(p)
	ctas, panelsAbove := fillCTAsPerSM*p.Device.NumSMs, p.Rows/columns
	c.ThreadsAcross = min(num.Pow2(num.CeilDiv(columns, columnsOfThread)), warpThreads)
	for c.ThreadsAcross*columnsOfThread > minPanelBytes/p.ElementSize && num.CeilDiv(columns, c.ThreadsAcross*columnsOfThread)*panelsAbove < ctas {
		c.ThreadsAcross /= 2
	}
	c.ThreadsDown = min(num.Pow2(num.CeilDiv(n, rowsOfThread)), tiledThreads(p)/c.ThreadsAcross)
	if p.Carries { // a panel has more than a warp, as those of a warp have no carry
		c.ThreadsDown = max(c.ThreadsDown, 2*warpThreads/c.ThreadsAcross)
	}
	c.PanelColumns = c.ThreadsAcross * columnsOfThread
	if c.ThreadsAcross*c.ThreadsDown > warpThreads { // one thread owns the carry of each column
		c.ThreadsDown = max(c.ThreadsDown, columnsOfThread)
	}
	c.Segments = num.CeilDiv(columns, c.PanelColumns) * panelsAbove
	c.Block = c.ThreadsAcross * c.ThreadsDown
	if c.Block <= warpThreads { // several panels in a CTA
		c.Block = minColumnCTAThreads
		c.Grid = num.CeilDiv(c.Segments, c.Block/(c.ThreadsAcross*c.ThreadsDown))
		c.SmemBytes = columnTiledSmem(p, c.Block)
		return c
	}
	c.SmemBytes = columnTiledSmem(p, c.Block)
	c.split(num.CeilDiv(n, rowsOfThread*c.ThreadsDown), ctas)
	if c.Grid = c.Segments * c.Splits; c.TilesPerSplit*c.Splits > 1 {
		c.reserveFlags(p, c.Segments)
	}
	return c
}

// columnTiledSmem is the shared memory of a CTA of column_tiled [bytes]: for each column the
// carry-in and the states of each warp.
func columnTiledSmem(p *Problem, block int64) uint32 {
	state := statesOf(p)
	return uint32((1 + block/warpThreads) * (warpThreads*p.Kind.ColumnTiledColumns.Of(p)*(state.prefix+state.suffix) + 16))
}
