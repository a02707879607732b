package core

// Geometry of cuda/scan_pieces.cuh.
const (
	pieceThreads = 512     // of a multiprocessor, all of which a block may have
	pieceVectors = 8       // of 16 bytes of each operand that a thread owns
	pieceCommon  = 8       // pieces of a row whose cluster every device with clusters takes
	pieceBeside  = 5 << 10 // bytes of shared memory of a block beside the stages, at most
	pieceHalf    = 192     // threads of blocks that share a multiprocessor, in float64 a third more
	pieceTurns   = 4       // of fewer turns at rows, none is left half empty
	pieceHeard   = 256     // blocks without a cluster that hear each other, at most
)

// pieceLane are the elements of a thread.
func (s *scanProgram) pieceLane() int64 { return pieceVectors * s.vector() }

// piecewise reports that rows are quicker in pieces than in tiles. Blocks of no cluster are slow to hear of each other: in float64 a launch
// for records is quicker.
func (s *scanProgram) piecewise() bool {
	if s.recorded() && s.element.Size() == 8 && s.fewestPieces() > clusterBlocks {
		return false
	}
	return s.clusters && s.holdsPieces(s.code()) && s.length()%s.vector() == 0
}

// fewestPieces are those of a row in the largest blocks.
func (s *scanProgram) fewestPieces() int64 {
	return ceil(s.length(), pieceThreads*s.pieceLane())
}

// holdsPieces says that rows are longer than a block holds, and that a cluster holds them, or so many blocks of the device as hear each other,
// each by a thread.
func (s *scanProgram) holdsPieces(code string) bool {
	return s.inClusters(code, "pieces") && !s.holdsRow(code) && s.fewestPieces() <= max(clusterBlocks, min(int64(s.units), pieceHeard))
}

// sharePieces gives each row to a cluster of many blocks, which wait for each other less; a row for which a cluster is too small to the
// fewest of the device.
func (s *scanProgram) sharePieces(_ string, rows, _ int64) scanShape {
	if fewest := s.fewestPieces(); fewest > clusterBlocks {
		g := s.pieces(rows, fewest)
		g.grid, g.height = min(rows, int64(s.units)/g.parts)*g.parts, g.marks
		return g
	}
	_, most := s.pieceCounts()
	return s.pieces(rows, most)
}

// pieceCounts are how many blocks of a cluster hold a row: the fewest, of pieceHalf threads as long as that will do, and the most, of two
// warps each.
func (s *scanProgram) pieceCounts() (least, most int64) {
	half := int64(pieceHalf)
	if s.element.Size() == 8 {
		half = pieceHalf * 4 / 3
	}
	least = clamp(ceil(s.length(), half*s.pieceLane()), 2, clusterBlocks)
	most = clusterBlocks
	if s.element.Size() == 8 {
		most = max(least, pieceCommon)
	}
	return least, clamp(ceil(s.length(), 64*s.pieceLane()), least, most)
}

// pieceRows are the rows at once whose pieces keep memory busy, as measured on an H100: those that so many threads of a multiprocessor hold,
// and so many more, as there are always some whose blocks wait for each other. Fewer leave memory idle; more hold up what blocks tell each
// other. By Little's law a memory of more bandwidth wants more on its way, as if there were more multiprocessors; and more
// still of 16 bits, as rows of these take their time on multiprocessors.
var pieceRows = map[string]map[int64]struct{ threads, more int64 }{
	"cumprod":      {2: {250, 4}, 4: {228, 4}, 8: {225, 6}},
	"cumextremum":  {2: {300, 2}, 4: {245, 4}, 8: {280, 5}},
	"logcumsumexp": {2: {290, 5}, 4: {262, 5}, 8: {310, 6}},
}

// rowsAtOnce are those that pieceRows tells, by kind and size of elements, for the device.
func (s *scanProgram) rowsAtOnce() int64 {
	few := pieceRows[s.code()][s.element.Size()]
	served := max(int64(s.units), s.bandwidth/unitMemory)
	threads := few.threads * served
	if s.element.Size() == 2 {
		threads = threads * served / int64(s.units)
	}
	return threads/(32*ceil(s.length(), 32*s.pieceLane())) + few.more
}

// pieces gives each row to about so many blocks, which have equally many warps; each has a mark for each of its rows.
func (s *scanProgram) pieces(rows, parts int64) scanShape {
	g := scanShape{kernel: "pieces", tiles: 1, strips: rows, columns: 1}
	g.gather(max(1, ceil(s.length(), 32*s.pieceLane())), parts, 32)
	g.shared = uint32(3 * 16 * g.block * pieceVectors)
	s.mark(&g, g.strips*g.parts)
	return g
}

// fillPieces takes the most blocks of a cluster for a row, or fewer, with which more rows, by a tenth, are on the device at once.
func (s *scanProgram) fillPieces(g *scanShape, room *scanRoom) bool {
	if !g.clustered() {
		return g.grid > 0 && int64(g.shared)+pieceBeside <= int64(room.shared)
	}
	found := int64(0)
	for least, parts := s.pieceCounts(); parts >= least; parts-- {
		c := s.pieces(g.strips, parts)
		if fits := room.clusters(&c); 9*fits > 10*found {
			*g, found = c, fits
		}
	}
	if found == 0 {
		return false
	}
	rows := min(found, s.rowsAtOnce())
	least := ceil(9*rows, 10)
	if turns := max(g.strips/rows, ceil(g.strips, found)); turns < pieceTurns {
		rows = ceil(g.strips, turns)
		least = rows
	}
	return s.evenPieces(g, room, rows, least)
}

// evenPieces takes so many rows at once, or no fewer than `least` if those fill multiprocessors evenly: each has no more blocks than it must.
func (s *scanProgram) evenPieces(g *scanShape, room *scanRoom, rows, least int64) bool {
	need := int64(g.shared)
	for beside := ceil(least*g.parts, int64(s.units)); ; beside++ {
		g.shared = uint32(max(need, (int64(room.shared)/beside-pieceBeside)&^127))
		if fits := room.clusters(g); fits >= least || int64(g.shared) == need {
			g.grid = min(fits, rows) * g.parts
			return fits > 0
		}
	}
}
