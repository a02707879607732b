package core

// Geometry of cuda/scan_slabs.cuh.
const (
	slabThreads = 512                       // of a block, at most
	slabSide    = 128                       // bytes of a row of a strip
	slabBytes   = 128                       // of each operand that a thread owns
	slabRows    = 32 * slabBytes / slabSide // of a warp
	slabSeen    = 8                         // rows that make the bases of columns
	slabLeast   = 1 << 10                   // elements of a column: strips of shorter ones are in the level-2 cache when they are read again
)

// slabwise reports that columns are quicker in slabs than in a ring, where the device has clusters.
func (s *scanProgram) slabwise() bool {
	return s.clusters && s.holdsSlabs(s.code()) && s.length() >= slabLeast
}

func (s *scanProgram) holdsSlabs(code string) bool {
	return s.inClusters(code, "slabs") && s.length() <= clusterBlocks*slabThreads/32*slabRows
}

// shareSlabs gives each strip to the blocks of a cluster, the fewest that hold it, which have equally many warps.
func (s *scanProgram) shareSlabs(_ string, rows, columns int64) scanShape {
	g := scanShape{kernel: "slabs", tiles: 1, columns: slabSide / s.element.Size()}
	g.strips = ceil(columns, g.columns) * (rows / columns)
	warps := max(1, ceil(s.length(), slabRows))
	g.gather(warps, ceil(32*warps, slabThreads))
	room := int64(2 * 32 * slabBytes)
	if s.kind == "logcumsumexp" {
		room += slabSeen * slabSide
	}
	g.shared = uint32(g.block / 32 * room)
	s.mark(&g)
	return g
}

// fillSlabs takes as many clusters as the device has at once, unless these leave half of it idle.
func (s *scanProgram) fillSlabs(g *scanShape, room *scanRoom) bool {
	fits := room.clusters(g)
	g.grid = min(g.strips, fits) * g.parts
	return fits > 0 && (s.forced || 2*fits*g.parts*g.block >= int64(s.units)*slabThreads)
}
