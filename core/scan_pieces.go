package core

// Geometry of cuda/scan_pieces.cuh.
const (
	pieceVectors = 8       // of 16 bytes of each operand that a thread owns
	pieceCommon  = 8       // pieces of a row whose cluster every device with clusters takes
	pieceBeside  = 3 << 10 // bytes of shared memory of a block beside the stages, at most
	pieceReading = 256     // threads of a multiprocessor whose next pieces are on their way: more than so many hold up memory
)

// pieceThreads is kPieceThreads: of a block, at most, and those that a multiprocessor has registers for.
func (s *scanProgram) pieceThreads() int64 {
	if s.element.Size() == 8 {
		return 512
	}
	return 384
}

// pieceLane are the elements of a thread.
func (s *scanProgram) pieceLane() int64 { return pieceVectors * s.vector() }

// piecewise reports that rows are quicker in pieces than in tiles.
func (s *scanProgram) piecewise() bool {
	return s.clusters && s.holdsPieces(s.code()) && s.length()%s.vector() == 0
}

func (s *scanProgram) holdsPieces(code string) bool {
	return s.inClusters(code, "pieces") && !s.holdsRow(code) && s.length() <= clusterBlocks*s.pieceThreads()*s.pieceLane()
}

// sharePieces gives each row to a cluster of many blocks, which wait for each other less.
func (s *scanProgram) sharePieces(_ string, rows, _ int64) scanShape {
	_, most := s.pieceCounts()
	return s.pieces(rows, most)
}

// pieceCounts are how many blocks hold a row: the fewest, of half of a multiprocessor's threads as long as that will do, and the most, of
// two warps each.
func (s *scanProgram) pieceCounts() (least, most int64) {
	least = clamp(ceil(s.length(), s.pieceThreads()/2*s.pieceLane()), 2, clusterBlocks)
	most = clusterBlocks
	if s.element.Size() == 8 {
		most = max(least, pieceCommon)
	}
	return least, clamp(ceil(s.length(), 64*s.pieceLane()), least, most)
}

// pieces gives each row to about so many blocks, which have equally many warps.
func (s *scanProgram) pieces(rows, parts int64) scanShape {
	g := scanShape{kernel: "pieces", tiles: 1, strips: rows, columns: 1}
	g.gather(max(1, ceil(s.length(), 32*s.pieceLane())), parts, 32)
	g.shared = uint32(3 * 16 * g.block * pieceVectors)
	s.mark(&g)
	return g
}

// fillPieces takes the most blocks for a row, or fewer, with which more rows, by a tenth, are on the device at once.
func (s *scanProgram) fillPieces(g *scanShape, room *scanRoom) bool {
	found := int64(0)
	for least, parts := s.pieceCounts(); parts >= least; parts-- {
		c := s.pieces(g.strips, parts)
		if fits := room.clusters(&c); 9*fits > 10*found {
			*g, found = c, fits
		}
	}
	if beside := ceil(pieceReading, g.block); found > 0 && g.parts <= pieceCommon && s.element.Size() < 8 { // in larger ones more of them wait
		few := *g
		few.shared = max(g.shared, uint32(int64(room.shared)/beside-pieceBeside)&^127)
		if fits := room.clusters(&few); fits > 0 {
			*g, found = few, fits
		}
	}
	g.grid = min(g.strips, found) * g.parts
	return found > 0
}
