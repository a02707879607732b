package core

// Geometry of cuda/scan_pieces.cuh.
const (
	pieceBlocks = 2       // of scanRowThreads, that a multiprocessor holds at once
	pieceBeside = 3 << 10 // bytes of shared memory of a block beside the stages, at most
	pieceMost   = 32      // pieces of a row: a lane hears each
)

// piecewise reports that rows are quicker in pieces than in tiles. Sums of exponentials of 16 bits, whose tails wait for heads, lose more by
// waiting than by reading x twice where there are rows enough to keep all blocks busy for most of their turns, of more than a few tiles.
func (s *scanProgram) piecewise() bool {
	switch {
	case !s.holdsPieces(s.code()) || s.length()%s.vector() != 0 || s.length() > pieceBlocks*int64(s.units)*scanRowThreads*s.lane(s.code()):
		return false
	case s.kind == "logcumsumexp" && s.element.Size() == 2:
		return s.rowCount() <= 3*int64(s.units) || s.length() < 2*scanRowThreads*s.lane(s.code())
	}
	return true
}

func (s *scanProgram) holdsPieces(code string) bool {
	return tamed(code) && !s.holdsRow(code) && s.length() <= pieceMost*scanRowThreads*s.lane(code)
}

// sharePieces gives each row to blocks that have equally many warps: to as few as hold it, or up to twice as many where more rows are then
// on the device at once.
func (s *scanProgram) sharePieces(_ string, rows, _ int64) scanShape {
	g := scanShape{kernel: "pieces", tiles: 1, strips: rows, columns: 1, held: true}
	warps := ceil(s.length(), 32*s.lane(s.code()))
	least := ceil(32*warps, scanRowThreads)
	for parts, most := least, int64(0); parts <= min(2*least, pieceMost); parts++ {
		block := 32 * ceil(warps, parts)
		beside := pieceBlocks * scanRowThreads / block
		if fits := beside * int64(s.units) / parts; fits > most {
			g.block, g.beside, g.parts, most = block, beside, parts, fits
		}
	}
	s.mark(&g)
	g.height = g.marks
	g.shared = uint32(3 * 16 * g.block * s.vectors(s.code()))
	g.spread(s.units)
	return g
}

// fillPieces takes as many blocks as a multiprocessor has shared memory for, so that all of them are on the device.
func (s *scanProgram) fillPieces(g *scanShape, shared int) bool {
	g.beside = min(g.beside, int64(shared)/(int64(g.shared)+pieceBeside))
	g.spread(s.units)
	return g.grid > 0
}

// spread gives the blocks that are on the device at once to as many whole rows.
func (g *scanShape) spread(units int) {
	g.grid = min(g.strips, g.beside*int64(units)/g.parts) * g.parts
}
