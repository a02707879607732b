package gpu

import "github.com/sternway/sternway/core/internal/num"

// Cluster rows: a row is divided among the CTAs of a thread-block cluster, each of which keeps its
// slice in registers, so that x and dy are read once. Rows too long for a cluster are
// grid-resident: they use the CTAs of the whole device, in a cooperative launch.

// RowClusterItems is the number of elements of a thread of row_cluster.
func RowClusterItems(p *Problem) int64 { return RowClusterVectors * p.Vector() }

// minSplits is the number of CTAs of the largest size that hold a row.
func minSplits(p *Problem) int64 {
	return num.CeilDiv(p.Length, RowClusterThreads*RowClusterItems(p))
}

// supportsLengthRowCluster reports whether a row is too long for row_resident and fits a cluster,
// or the resident CTAs of the device.
func supportsLengthRowCluster(p *Problem) bool {
	return p.Kind.HasKernel(RowCluster) && !supportsLengthRowResident(p) && minSplits(p) <= max(MaxClusterCTAs, min(p.Device.NumSMs, MaxResidentSplits))
}

// configureRowCluster gives each row to the largest cluster of clusterSizes, because CTAs with
// fewer threads wait for each other less. A grid-resident row gets as few CTAs as hold it.
func configureRowCluster(p *Problem, _ int64) Config {
	if least := minSplits(p); least > MaxClusterCTAs {
		c := splitRowCluster(p, least)
		c.Grid, c.StatusOffset, c.Cooperative = min(p.Rows, p.Device.NumSMs/c.Splits)*c.Splits, c.FlagBytes, true
		return c
	}
	_, most := clusterSizes(p)
	return splitRowCluster(p, most)
}

// clusterSizes are the smallest and the largest number of CTAs of a row. The smallest has the
// largest CTAs of which two share an SM, the largest has CTAs of two warps.
func clusterSizes(p *Problem) (least, most int64) {
	sizes := rowClusterSizes.Of(p)
	least = num.Clamp(num.CeilDiv(p.Length, sizes.sharedThreads*RowClusterItems(p)), 2, MaxClusterCTAs)
	most = max(least, sizes.maxCTAs)
	return least, num.Clamp(num.CeilDiv(p.Length, 2*warpThreads*RowClusterItems(p)), least, most)
}

// rowsInFlight is the number of rows that saturates memory, as tuned.
func rowsInFlight(p *Problem) int64 {
	tuned := p.Kind.rowsInFlight.Of(p)
	served := max(p.Device.NumSMs, p.Device.Bandwidth/h100BytesPerSM) // SMs of an H100 of the same bandwidth
	threads := tuned.threads * served
	if tuned.squared {
		threads = threads * served / p.Device.NumSMs
	}
	return threads/(warpThreads*num.CeilDiv(p.Length, warpThreads*RowClusterItems(p))) + tuned.slack
}

// splitRowCluster gives each row to about `splits` CTAs with equally many warps. Each CTA has a
// flag for each of its rows.
func splitRowCluster(p *Problem, splits int64) Config {
	c := Config{Kernel: RowCluster, TilesPerSplit: 1, Segments: p.Rows, PanelColumns: 1}
	c.distribute(max(1, num.CeilDiv(p.Length, warpThreads*RowClusterItems(p))), splits, warpThreads)
	c.SmemBytes = uint32(3 * 16 * c.Block * RowClusterVectors)
	c.reserveFlags(p, c.Segments*c.Splits)
	return c
}

// fitRowCluster takes the most CTAs for a row, or fewer if these keep over 10/9 as many rows
// resident. If there are few rounds over the grid, rows are divided evenly among them, so that no
// round is half empty.
func fitRowCluster(p *Problem, c *Config) bool {
	limits := p.Device.Limits
	if !c.InCluster() {
		return c.Grid > 0 && int64(c.SmemBytes)+RowClusterSmem <= limits.SmemBytes
	}
	resident := int64(0)
	for least, splits := clusterSizes(p); splits >= least; splits-- {
		candidate := splitRowCluster(p, splits)
		if fits := limits.ResidentClusters(&candidate); 9*fits > 10*resident {
			*c, resident = candidate, fits
		}
	}
	if resident == 0 {
		return false
	}
	rows := min(resident, rowsInFlight(p))
	least := num.CeilDiv(9*rows, 10)
	if rounds := max(c.Segments/rows, num.CeilDiv(c.Segments, resident)); rounds < rowClusterFewRounds {
		rows = num.CeilDiv(c.Segments, rounds)
		least = rows
	}
	return c.balancePerSM(p, rows, least)
}

// balancePerSM keeps `rows` rows in flight, or no fewer than `least` if these load all SMs equally.
// It reserves more shared memory than a CTA needs, in multiples of 128 bytes, to keep further CTAs
// off its SM.
func (c *Config) balancePerSM(p *Problem, rows, least int64) bool {
	limits, need := p.Device.Limits, int64(c.SmemBytes)
	for ctasPerSM := num.CeilDiv(least*c.Splits, p.Device.NumSMs); ; ctasPerSM++ {
		c.SmemBytes = uint32(max(need, (limits.SmemBytes/ctasPerSM-RowClusterSmem)&^127))
		if fits := limits.ResidentClusters(c); fits >= least || int64(c.SmemBytes) == need {
			c.Grid = min(fits, rows) * c.Splits
			return fits > 0
		}
	}
}
