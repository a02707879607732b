package gpu

import "github.com/sternway/sternway/core/internal/num"

// Cluster columns: a panel of columns, one cache line wide, is divided among the CTAs of a
// thread-block cluster, which keep it in registers and shared memory, so that x and dy are read
// once.

func supportsLengthColumnCluster(p *Problem) bool {
	return p.Kind.HasKernel(ColumnCluster) && p.Length <= MaxClusterCTAs*ColumnClusterThreads
}

// configureColumnCluster gives each panel to the smallest power of two of CTAs that hold it,
// because the SMs of a GPU processing cluster take a whole number of such clusters. CTAs have
// equally many warps.
func configureColumnCluster(p *Problem, columns int64) Config {
	c := Config{Kernel: ColumnCluster, TilesPerSplit: 1, PanelColumns: LineBytes / p.ElementSize}
	c.Segments = num.CeilDiv(columns, c.PanelColumns) * (p.Rows / columns)
	c.distribute(max(1, num.CeilDiv(p.Length, warpThreads)), num.Pow2(num.CeilDiv(p.Length, ColumnClusterThreads)), warpThreads)
	c.SmemBytes = uint32(c.Block / warpThreads * p.Kind.columnClusterLines.Of(p) * LineBytes)
	c.reserveFlags(p, c.Segments)
	return c
}

// fitColumnCluster takes all clusters that are resident at once. Unless the caller asks for this
// kernel, they must occupy at least half of the SMs.
func fitColumnCluster(p *Problem, c *Config) bool {
	if !p.Device.HasColumnClusters {
		return false
	}
	resident := p.Device.Limits.ResidentClusters(c)
	c.Grid = min(c.Segments, resident) * c.Splits
	return resident > 0 && (p.Kernel != "" || 2*resident*c.Splits >= p.Device.NumSMs)
}
