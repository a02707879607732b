package core

// Geometry of cuda/scan_pieces.cuh.
const (
	pieceVectors = 8       // of 16 bytes of each operand that a thread owns
	pieceBeside  = 3 << 10 // bytes of shared memory of a block beside the stages, at most
	pieceMost    = 32      // pieces of a row: a lane hears each
	pieceCluster = 16      // of a row whose blocks are a cluster
	pieceCommon  = 8       // of one that every device with clusters takes
	pieceReading = 256     // threads of a multiprocessor whose next pieces are on their way: more than so many hold up memory
)

// pieceThreads is kPieceThreads: of a block, at most; a multiprocessor has registers for twice as many.
func (s *scanProgram) pieceThreads() int64 {
	if s.element.Size() == 8 {
		return 256
	}
	return 192
}

// pieceLane and pieceHolds are the elements of a thread and of a block, at most.
func (s *scanProgram) pieceLane() int64  { return pieceVectors * s.vector() }
func (s *scanProgram) pieceHolds() int64 { return s.pieceThreads() * s.pieceLane() }

// piecewise reports that rows are quicker in pieces than in tiles.
func (s *scanProgram) piecewise() bool {
	return s.holdsPieces(s.code()) && s.length()%s.vector() == 0 && s.length() <= 2*int64(s.units)*s.pieceHolds()
}

func (s *scanProgram) holdsPieces(code string) bool {
	return tamed(code) && !s.holdsRow(code) && s.length() <= pieceMost*s.pieceHolds()
}

// fewestPieces is how many blocks hold a row, of two at least.
func (s *scanProgram) fewestPieces() int64 { return max(2, ceil(s.length(), s.pieceHolds())) }

// sharePieces gives rows to blocks that tell each other in memory: the fewest, or up to twice as many.
func (s *scanProgram) sharePieces(_ string, rows, _ int64) scanShape {
	least := s.fewestPieces()
	return s.pieces(rows, least, min(2*least, pieceMost), func(g *scanShape) int64 {
		g.beside = 2 * s.pieceThreads() / g.block
		return g.beside * int64(s.units) / g.parts
	})
}

// pieces gives each row to blocks that have equally many warps: to `first` of them, or to a number from there to `last` with which more rows,
// by a tenth, are on the device at once, which atOnce counts.
func (s *scanProgram) pieces(rows, first, last int64, atOnce func(g *scanShape) int64) (best scanShape) {
	warps, found, step := ceil(s.length(), 32*s.pieceLane()), int64(0), int64(1)
	if last < first {
		step = -1
	}
	for parts := first; parts != last+step; parts += step {
		each := ceil(warps, parts)
		g := scanShape{kernel: "pieces", tiles: 1, strips: rows, columns: 1, held: true, parts: ceil(warps, each), block: 32 * each}
		g.shared = uint32(3 * 16 * g.block * pieceVectors)
		if fits := atOnce(&g); 9*fits > 10*found {
			g.grid = min(rows, fits) * g.parts
			best, found = g, fits
		}
	}
	s.mark(&best)
	best.height = best.marks
	return best
}

// clusterPieces gives rows to clusters of many blocks, which wait for each other less, of two warps at least.
func (s *scanProgram) clusterPieces(rows int64, room *scanRoom) scanShape {
	least, most := s.fewestPieces(), int64(pieceCluster)
	if s.element.Size() == 8 {
		most = max(least, pieceCommon)
	}
	if least > most {
		return scanShape{}
	}
	return s.pieces(rows, clamp(ceil(s.length(), 64*s.pieceLane()), least, most), least, room.clusters)
}

// fillPieces takes as many blocks as a multiprocessor has shared memory for, so that all of them are on the device; or clusters, in which they
// tell each other sooner, where nearly as many rows are on the device then.
func (s *scanProgram) fillPieces(g *scanShape, room *scanRoom) bool {
	g.beside = min(g.beside, int64(room.shared)/(int64(g.shared)+pieceBeside))
	g.grid = min(g.strips, g.beside*int64(s.units)/g.parts) * g.parts
	c := s.clusterPieces(g.strips, room)
	if c.grid == 0 || 5*c.grid*g.parts < 4*g.grid*c.parts {
		return g.grid > 0 && s.waits()
	}
	if beside := ceil(pieceReading, c.block); c.parts <= pieceCommon && s.element.Size() < 8 { // in larger ones more of them wait
		few := c
		few.shared = max(c.shared, uint32(int64(room.shared)/beside-pieceBeside)&^127)
		if fits := room.clusters(&few); fits > 0 {
			c, c.grid = few, min(c.strips, fits)*c.parts
		}
	}
	*g, g.clustered = c, true
	return true
}

// waits reports that pieces may wait for what is told in memory. Sums of exponentials of 16 bits, whose tails wait for heads, lose more by it
// than by reading x twice, where there are rows enough to keep all blocks busy for most of their turns, of more than a few tiles.
func (s *scanProgram) waits() bool {
	if s.kind != "logcumsumexp" || s.element.Size() != 2 {
		return true
	}
	return s.rowCount() <= 3*int64(s.units) || s.length() < 2*scanRowThreads*s.lane(s.code())
}
