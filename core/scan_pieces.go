package core

// Geometry of cuda/scan_pieces.cuh.
const (
	pieceBlocks  = 2       // of scanRowThreads, that a multiprocessor holds at once
	pieceBeside  = 3 << 10 // bytes of shared memory of a block beside the stages, at most
	pieceMost    = 32      // pieces of a row: a lane hears each
	pieceCluster = 16      // of a row whose blocks are a cluster
	pieceCommon  = 8       // of one that every device with clusters takes
)

// piecewise reports that rows are quicker in pieces than in tiles.
func (s *scanProgram) piecewise() bool {
	return s.holdsPieces(s.code()) && s.length()%s.vector() == 0 && s.length() <= pieceBlocks*int64(s.units)*scanRowThreads*s.lane(s.code())
}

func (s *scanProgram) holdsPieces(code string) bool {
	return tamed(code) && !s.holdsRow(code) && s.length() <= pieceMost*scanRowThreads*s.lane(code)
}

// sharePieces gives rows to blocks that tell each other in memory.
func (s *scanProgram) sharePieces(_ string, rows, _ int64) scanShape {
	return s.pieces(rows, s.fewestPieces(), pieceMost, func(g *scanShape) int64 {
		g.beside = pieceBlocks * scanRowThreads / g.block
		return g.beside * int64(s.units) / g.parts
	})
}

// fewestPieces is how many blocks hold a row.
func (s *scanProgram) fewestPieces() int64 { return ceil(s.length(), scanRowThreads*s.lane(s.code())) }

// pieces gives each row to blocks that have equally many warps: to the fewest, or to up to twice as many where more rows, by a tenth, are
// then on the device at once, which atOnce counts.
func (s *scanProgram) pieces(rows, least, most int64, atOnce func(g *scanShape) int64) (best scanShape) {
	warps, found := ceil(s.length(), 32*s.lane(s.code())), int64(0)
	for parts := least; parts <= min(2*least, most); parts++ {
		each := ceil(warps, parts)
		g := scanShape{kernel: "pieces", tiles: 1, strips: rows, columns: 1, held: true, parts: ceil(warps, each), block: 32 * each}
		g.shared = uint32(3 * 16 * g.block * s.vectors(s.code()))
		if fits := atOnce(&g); 9*fits > 10*found {
			g.grid = min(rows, fits) * g.parts
			best, found = g, fits
		}
	}
	s.mark(&best)
	best.height = best.marks
	return best
}

// fillPieces takes as many blocks as a multiprocessor has shared memory for, so that all of them are on the device; or clusters, in which they
// tell each other sooner, where nearly as many rows are on the device then.
func (s *scanProgram) fillPieces(g *scanShape, room *scanRoom) bool {
	g.beside = min(g.beside, int64(room.shared)/(int64(g.shared)+pieceBeside))
	g.grid = min(g.strips, g.beside*int64(s.units)/g.parts) * g.parts
	least := s.fewestPieces()
	if half := 2 * least; s.element.Size() != 4 && least > 2 && half <= pieceCommon { // more blocks wait for each other less
		least = half
	}
	if c := s.pieces(g.strips, least, pieceCluster, room.clusters); c.grid > 0 && 5*c.grid*g.parts >= 4*g.grid*c.parts {
		*g, g.clustered = c, true
		return true
	}
	return g.grid > 0 && s.waits()
}

// waits reports that pieces may wait for what is told in memory. Sums of exponentials of 16 bits, whose tails wait for heads, lose more by it
// than by reading x twice, where there are rows enough to keep all blocks busy for most of their turns, of more than a few tiles.
func (s *scanProgram) waits() bool {
	if s.kind != "logcumsumexp" || s.element.Size() != 2 {
		return true
	}
	return s.rowCount() <= 3*int64(s.units) || s.length() < 2*scanRowThreads*s.lane(s.code())
}
