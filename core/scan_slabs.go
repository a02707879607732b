package core

// Geometry of cuda/scan_slabs.cuh.
const (
	slabThreads = 512    // of a block, at most; each warp owns as many rows as it has threads
	slabSeen    = 8      // rows that make the bases of columns
	slabAgain   = 20     // rows whose x a warp keeps, of 16-bit logcumsumexp
	slabLeast   = 1 << 9 // elements of a column: strips of shorter ones are in the level-2 cache when they are read again
)

// slabwise reports that so many columns side by side are quicker in slabs than in a ring, where the device has room for them. Large slabs that
// reckon longer than a quick memory takes are not, where there are strips for the whole device.
func (s *scanProgram) slabwise(columns int64) bool {
	if !s.slabs || !s.holdsSlabs(s.code()) || s.length() < slabLeast {
		return false
	}
	g := s.shareSlabs("", s.rowCount(), columns)
	slow := s.kind == "logcumsumexp" && s.element.Size() == 2 && g.parts > clusterBlocks/2
	return !slow || !s.hurries() || 2*g.strips < int64(s.units)
}

func (s *scanProgram) holdsSlabs(code string) bool {
	return s.inClusters(code, "slabs") && s.length() <= clusterBlocks*slabThreads
}

// shareSlabs gives each strip to the blocks of a cluster, which have equally many warps: as few as hold it and are a power of two, of which
// the multiprocessors of a GPU processing cluster have room for a whole number.
func (s *scanProgram) shareSlabs(_ string, rows, columns int64) scanShape {
	g := scanShape{kernel: "slabs", tiles: 1, columns: lineBytes / s.element.Size()}
	g.strips = ceil(columns, g.columns) * (rows / columns)
	g.gather(max(1, ceil(s.length(), 32)), pow2(ceil(s.length(), slabThreads)), 32)
	lines := int64(2 * 32)
	if s.kind == "logcumsumexp" {
		lines += slabSeen
		if s.element.Size() == 2 {
			lines += slabAgain
		}
	}
	g.shared = uint32(g.block / 32 * lines * lineBytes)
	s.mark(&g, g.strips)
	return g
}

// fillSlabs takes as many clusters as the device has at once, unless these leave half of its multiprocessors idle.
func (s *scanProgram) fillSlabs(g *scanShape, room *scanRoom) bool {
	if !s.slabs {
		return false
	}
	fits := room.clusters(g)
	g.grid = min(g.strips, fits) * g.parts
	return fits > 0 && (s.forced || 2*fits*g.parts >= int64(s.units))
}
