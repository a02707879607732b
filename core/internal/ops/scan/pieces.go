package scan

import "github.com/sternway/sternway/core/internal/num"

// Geometry of cuda/scan_pieces.cuh.
const (
	PieceThreads = 512     // of a multiprocessor, all of which a block may have
	PieceVectors = 8       // of 16 bytes of each operand that a thread owns
	pieceCommon  = 8       // pieces of a row whose cluster every device with clusters takes
	PieceBeside  = 5 << 10 // bytes of shared memory of a block beside the stages, at most
	pieceHalf    = 192     // threads of blocks that share a multiprocessor, in float64 a third more
	pieceTurns   = 4       // of fewer turns at rows, none is left half empty
	PieceHeard   = 256     // blocks without a cluster that hear each other, at most
)

// PieceLane are the elements of a thread.
func (s *ScanProgram) PieceLane() int64 { return PieceVectors * s.Vector() }

// piecewise reports that rows are quicker in pieces than in tiles. Blocks of no cluster are slow to hear of each other: in float64 a launch
// for records is quicker.
func (s *ScanProgram) piecewise() bool {
	if s.recorded() && s.element.Size() == 8 && s.fewestPieces() > ClusterBlocks {
		return false
	}
	return s.clusters && s.holdsPieces(s.Code()) && s.Length()%s.Vector() == 0
}

// fewestPieces are those of a row in the largest blocks.
func (s *ScanProgram) fewestPieces() int64 {
	return num.CeilDiv(s.Length(), PieceThreads*s.PieceLane())
}

// holdsPieces says that rows are longer than a block holds, and that a cluster holds them, or so many blocks of the device as hear each other,
// each by a thread.
func (s *ScanProgram) holdsPieces(code string) bool {
	return s.inClusters(code, "pieces") && !s.holdsRow(code) && s.fewestPieces() <= max(ClusterBlocks, min(int64(s.Units), PieceHeard))
}

// sharePieces gives each row to a cluster of many blocks, which wait for each other less; a row for which a cluster is too small to the
// fewest of the device.
func (s *ScanProgram) sharePieces(_ string, rows, _ int64) ScanShape {
	if fewest := s.fewestPieces(); fewest > ClusterBlocks {
		g := s.pieces(rows, fewest)
		g.Grid, g.Height = min(rows, int64(s.Units)/g.Parts)*g.Parts, g.marks
		return g
	}
	_, most := s.pieceCounts()
	return s.pieces(rows, most)
}

// pieceCounts are how many blocks of a cluster hold a row: the fewest, of pieceHalf threads as long as that will do, and the most, of two
// warps each.
func (s *ScanProgram) pieceCounts() (least, most int64) {
	half := int64(pieceHalf)
	if s.element.Size() == 8 {
		half = pieceHalf * 4 / 3
	}
	least = num.Clamp(num.CeilDiv(s.Length(), half*s.PieceLane()), 2, ClusterBlocks)
	most = ClusterBlocks
	if s.element.Size() == 8 {
		most = max(least, pieceCommon)
	}
	return least, num.Clamp(num.CeilDiv(s.Length(), 64*s.PieceLane()), least, most)
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
func (s *ScanProgram) rowsAtOnce() int64 {
	few := pieceRows[s.Code()][s.element.Size()]
	served := max(int64(s.Units), s.bandwidth/unitMemory)
	threads := few.threads * served
	if s.element.Size() == 2 {
		threads = threads * served / int64(s.Units)
	}
	return threads/(32*num.CeilDiv(s.Length(), 32*s.PieceLane())) + few.more
}

// pieces gives each row to about so many blocks, which have equally many warps; each has a mark for each of its rows.
func (s *ScanProgram) pieces(rows, parts int64) ScanShape {
	g := ScanShape{Kernel: "pieces", Tiles: 1, Strips: rows, Columns: 1}
	g.gather(max(1, num.CeilDiv(s.Length(), 32*s.PieceLane())), parts, 32)
	g.Shared = uint32(3 * 16 * g.Block * PieceVectors)
	s.mark(&g, g.Strips*g.Parts)
	return g
}

// FillPieces takes the most blocks of a cluster for a row, or fewer, with which more rows, by a tenth, are on the device at once.
func (s *ScanProgram) FillPieces(g *ScanShape, room *ScanRoom) bool {
	if !g.Clustered() {
		return g.Grid > 0 && int64(g.Shared)+PieceBeside <= int64(room.Shared)
	}
	found := int64(0)
	for least, parts := s.pieceCounts(); parts >= least; parts-- {
		c := s.pieces(g.Strips, parts)
		if fits := room.Clusters(&c); 9*fits > 10*found {
			*g, found = c, fits
		}
	}
	if found == 0 {
		return false
	}
	rows := min(found, s.rowsAtOnce())
	least := num.CeilDiv(9*rows, 10)
	if turns := max(g.Strips/rows, num.CeilDiv(g.Strips, found)); turns < pieceTurns {
		rows = num.CeilDiv(g.Strips, turns)
		least = rows
	}
	return s.evenPieces(g, room, rows, least)
}

// evenPieces takes so many rows at once, or no fewer than `least` if those fill multiprocessors evenly: each has no more blocks than it must.
func (s *ScanProgram) evenPieces(g *ScanShape, room *ScanRoom, rows, least int64) bool {
	need := int64(g.Shared)
	for beside := num.CeilDiv(least*g.Parts, int64(s.Units)); ; beside++ {
		g.Shared = uint32(max(need, (int64(room.Shared)/beside-PieceBeside)&^127))
		if fits := room.Clusters(g); fits >= least || int64(g.Shared) == need {
			g.Grid = min(fits, rows) * g.Parts
			return fits > 0
		}
	}
}
