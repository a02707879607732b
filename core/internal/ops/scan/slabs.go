package scan

import "github.com/sternway/sternway/core/internal/num"

// Geometry of cuda/scan_slabs.cuh.
const (
	SlabThreads = 512    // of a block, at most; each warp owns as many rows as it has threads
	SlabSeen    = 8      // rows that make the bases of columns
	SlabAgain   = 20     // rows whose x a warp keeps, of 16-bit logcumsumexp
	slabLeast   = 1 << 9 // elements of a column: strips of shorter ones are in the level-2 cache when they are read again
)

// slabwise reports that so many columns side by side are quicker in slabs than in a ring, where the device has room for them. Large slabs that
// reckon longer than a quick memory takes are not, where there are strips for the whole device.
func (s *ScanProgram) slabwise(columns int64) bool {
	if !s.slabs || !s.holdsSlabs(s.Code()) || s.Length() < slabLeast {
		return false
	}
	g := s.shareSlabs("", s.RowCount(), columns)
	slow := s.kind == "logcumsumexp" && s.element.Size() == 2 && g.Parts > ClusterBlocks/2
	return !slow || !s.hurries() || 2*g.Strips < int64(s.Units)
}

func (s *ScanProgram) holdsSlabs(code string) bool {
	return s.inClusters(code, "slabs") && s.Length() <= ClusterBlocks*SlabThreads
}

// shareSlabs gives each strip to the blocks of a cluster, which have equally many warps: as few as hold it and are a power of two, of which
// the multiprocessors of a GPU processing cluster have room for a whole number.
func (s *ScanProgram) shareSlabs(_ string, rows, columns int64) ScanShape {
	g := ScanShape{Kernel: "slabs", Tiles: 1, Columns: LineBytes / s.element.Size()}
	g.Strips = num.CeilDiv(columns, g.Columns) * (rows / columns)
	g.gather(max(1, num.CeilDiv(s.Length(), 32)), num.Pow2(num.CeilDiv(s.Length(), SlabThreads)), 32)
	lines := int64(2 * 32)
	if s.kind == "logcumsumexp" {
		lines += SlabSeen
		if s.element.Size() == 2 {
			lines += SlabAgain
		}
	}
	g.Shared = uint32(g.Block / 32 * lines * LineBytes)
	s.mark(&g, g.Strips)
	return g
}

// FillSlabs takes as many clusters as the device has at once, unless these leave half of its multiprocessors idle.
func (s *ScanProgram) FillSlabs(g *ScanShape, room *ScanRoom) bool {
	if !s.slabs {
		return false
	}
	fits := room.Clusters(g)
	g.Grid = min(g.Strips, fits) * g.Parts
	return fits > 0 && (s.forced || 2*fits*g.Parts >= int64(s.Units))
}
