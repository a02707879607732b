package scan

import "github.com/sternway/sternway/core/internal/num"

// Geometry of cuda/scan_slabs.cuh.
const (
	ColumnClusterThreads   = 512    // of a block, at most; each warp owns as many rows as it has threads
	BoundRows              = 8      // rows that make the bases of columns
	RecomputedRows         = 20     // rows whose x a warp keeps, of 16-bit logcumsumexp
	minColumnClusterLength = 1 << 9 // elements of a column: strips of shorter ones are in the level-2 cache when they are read again
)

// prefersColumnCluster reports that so many columns side by side are quicker in slabs than in a ring, where the device has room for them. Large slabs that
// reckon longer than a quick memory takes are not, where there are strips for the whole device.
func (s *Program) prefersColumnCluster(columns int64) bool {
	if !s.columnClusters || !s.supportsLengthColumnCluster(s.Code()) || s.Length() < minColumnClusterLength {
		return false
	}
	g := s.configureColumnCluster("", s.RowCount(), columns)
	slow := s.kind == "logcumsumexp" && s.element.Size() == 2 && g.Splits > ClusterBlocks/2
	return !slow || !s.bandwidthRich() || 2*g.Segments < int64(s.NumSMs)
}

func (s *Program) supportsLengthColumnCluster(code string) bool {
	return s.hasClusterKernel(code, "slabs") && s.Length() <= ClusterBlocks*ColumnClusterThreads
}

// configureColumnCluster gives each strip to the blocks of a cluster, which have equally many warps: as few as hold it and are a power of two, of which
// the multiprocessors of a GPU processing cluster have room for a whole number.
func (s *Program) configureColumnCluster(_ string, rows, columns int64) Config {
	g := Config{Kernel: "slabs", TilesPerSplit: 1, Columns: LineBytes / s.element.Size()}
	g.Segments = num.CeilDiv(columns, g.Columns) * (rows / columns)
	g.distribute(max(1, num.CeilDiv(s.Length(), 32)), num.Pow2(num.CeilDiv(s.Length(), ColumnClusterThreads)), 32)
	lines := int64(2 * 32)
	if s.kind == "logcumsumexp" {
		lines += BoundRows
		if s.element.Size() == 2 {
			lines += RecomputedRows
		}
	}
	g.SmemBytes = uint32(g.Block / 32 * lines * LineBytes)
	s.reserveFlags(&g, g.Segments)
	return g
}

// FitColumnCluster takes as many clusters as the device has at once, unless these leave half of its multiprocessors idle.
func (s *Program) FitColumnCluster(g *Config, room *DeviceLimits) bool {
	if !s.columnClusters {
		return false
	}
	fits := room.Clusters(g)
	g.Grid = min(g.Segments, fits) * g.Splits
	return fits > 0 && (s.forced || 2*fits*g.Splits >= int64(s.NumSMs))
}
