package scan

import (
	"fmt"
	"slices"

	"github.com/sternway/sternway/core/internal/num"
)

// Geometry of cuda/scan_pieces.cuh.
const (
	RowClusterThreads       = 512     // of a multiprocessor, all of which a block may have
	RowClusterVectors       = 8       // of 16 bytes of each operand that a thread owns
	portableClusterCTAs     = 8       // pieces of a row whose cluster every device with clusters takes
	RowClusterStaticSmem    = 5 << 10 // bytes of shared memory of a block beside the stages, at most
	rowClusterSharedThreads = 192     // threads of blocks that share a multiprocessor, in float64 a third more
	rowClusterFewRounds     = 4       // of fewer turns at rows, none is left half empty
	MaxResidentSplits       = 256     // blocks without a cluster that hear each other, at most
)

// RowClusterItemsPerThread are the elements of a thread.
func (s *Program) RowClusterItemsPerThread() int64 { return RowClusterVectors * s.Vector() }

// prefersRowCluster reports that rows are quicker in pieces than in tiles. Blocks of no cluster are slow to hear of each other: in float64 a launch
// for records is quicker.
func (s *Program) prefersRowCluster() bool {
	if s.hasRecords() && s.element.Size() == 8 && s.minSplits() > ClusterBlocks {
		return false
	}
	return s.clusters && s.supportsLengthRowCluster(s.Code()) && s.Length()%s.Vector() == 0
}

// minSplits are those of a row in the largest blocks.
func (s *Program) minSplits() int64 {
	return num.CeilDiv(s.Length(), RowClusterThreads*s.RowClusterItemsPerThread())
}

// supportsLengthRowCluster says that rows are longer than a block holds, and that a cluster holds them, or so many blocks of the device as hear each other,
// each by a thread.
func (s *Program) supportsLengthRowCluster(code string) bool {
	return s.hasClusterKernel(code, "pieces") && !s.supportsLengthRowResident(code) && s.minSplits() <= max(ClusterBlocks, min(int64(s.NumSMs), MaxResidentSplits))
}

// configureRowCluster gives each row to a cluster of many blocks, which wait for each other less; a row for which a cluster is too small to the
// fewest of the device.
func (s *Program) configureRowCluster(_ string, rows, _ int64) Config {
	if fewest := s.minSplits(); fewest > ClusterBlocks {
		g := s.pieces(rows, fewest)
		g.Grid, g.Height = min(rows, int64(s.NumSMs)/g.Splits)*g.Splits, g.flagBytes
		return g
	}
	_, most := s.splitRange()
	return s.pieces(rows, most)
}

// splitRange are how many blocks of a cluster hold a row: the fewest, of pieceHalf threads as long as that will do, and the most, of two
// warps each.
func (s *Program) splitRange() (least, most int64) {
	half := int64(rowClusterSharedThreads)
	if s.element.Size() == 8 {
		half = rowClusterSharedThreads * 4 / 3
	}
	least = num.Clamp(num.CeilDiv(s.Length(), half*s.RowClusterItemsPerThread()), 2, ClusterBlocks)
	most = ClusterBlocks
	if s.element.Size() == 8 {
		most = max(least, portableClusterCTAs)
	}
	return least, num.Clamp(num.CeilDiv(s.Length(), 64*s.RowClusterItemsPerThread()), least, most)
}

// clusterRows are the rows at once whose pieces keep memory busy, as measured on an H100: those that so many threads of a multiprocessor hold,
// and so many more, as there are always some whose blocks wait for each other. Fewer leave memory idle; more hold up what blocks tell each
// other. By Little's law a memory of more bandwidth wants more on its way, as if there were more multiprocessors; and more
// still of 16 bits, as rows of these take their time on multiprocessors.
var clusterRows = map[string]map[int64]struct{ threads, more int64 }{
	"cumprod":      {2: {250, 4}, 4: {228, 4}, 8: {225, 6}},
	"cumextremum":  {2: {300, 2}, 4: {245, 4}, 8: {280, 5}},
	"logcumsumexp": {2: {290, 5}, 4: {262, 5}, 8: {310, 6}},
}

// rowsInFlight are those that pieceRows tells, by kind and size of elements, for the device.
func (s *Program) rowsInFlight() int64 {
	few := clusterRows[s.Code()][s.element.Size()]
	served := max(int64(s.NumSMs), s.bandwidth/h100BytesPerSM)
	threads := few.threads * served
	if s.element.Size() == 2 {
		threads = threads * served / int64(s.NumSMs)
	}
	return threads/(32*num.CeilDiv(s.Length(), 32*s.RowClusterItemsPerThread())) + few.more
}

// pieces gives each row to about so many blocks, which have equally many warps; each has a mark for each of its rows.
func (s *Program) pieces(rows, parts int64) Config {
	g := Config{Kernel: "pieces", TilesPerSplit: 1, Segments: rows, Columns: 1}
	g.distribute(max(1, num.CeilDiv(s.Length(), 32*s.RowClusterItemsPerThread())), parts, 32)
	g.SmemBytes = uint32(3 * 16 * g.Block * RowClusterVectors)
	s.reserveFlags(&g, g.Segments*g.Splits)
	return g
}

// FitRowCluster takes the most blocks of a cluster for a row, or fewer, with which more rows, by a tenth, are on the device at once.
func (s *Program) FitRowCluster(g *Config, room *DeviceLimits) bool {
	if !g.InCluster() {
		return g.Grid > 0 && int64(g.SmemBytes)+RowClusterStaticSmem <= int64(room.SmemBytes)
	}
	found := int64(0)
	for least, parts := s.splitRange(); parts >= least; parts-- {
		c := s.pieces(g.Segments, parts)
		if fits := room.Clusters(&c); 9*fits > 10*found {
			*g, found = c, fits
		}
	}
	if found == 0 {
		return false
	}
	rows := min(found, s.rowsInFlight())
	least := num.CeilDiv(9*rows, 10)
	if turns := max(g.Segments/rows, num.CeilDiv(g.Segments, found)); turns < rowClusterFewRounds {
		rows = num.CeilDiv(g.Segments, turns)
		least = rows
	}
	return s.balancePerSM(g, room, rows, least)
}

// balancePerSM takes so many rows at once, or no fewer than `least` if those fill multiprocessors evenly: each has no more blocks than it must.
func (s *Program) balancePerSM(g *Config, room *DeviceLimits, rows, least int64) bool {
	need := int64(g.SmemBytes)
	for beside := num.CeilDiv(least*g.Splits, int64(s.NumSMs)); ; beside++ {
		g.SmemBytes = uint32(max(need, (int64(room.SmemBytes)/beside-RowClusterStaticSmem)&^127))
		if fits := room.Clusters(g); fits >= least || int64(g.SmemBytes) == need {
			g.Grid = min(fits, rows) * g.Splits
			return fits > 0
		}
	}
}

// ClusterBlocks is kClusterBlocks of cuda/scan_cluster.cuh: blocks of a cluster, at most.
const ClusterBlocks = 16

// hasClusters reports that devices of an architecture have clusters of blocks; hasSlabs that the blocks also have room for slabs, as
// kClusters of cuda/scan_cluster.cuh and kSlabs of cuda/scan_slabs.cuh say.
func hasClusters(arch string) bool       { return capability(arch) >= 90 }
func hasColumnClusters(arch string) bool { return hasClusters(arch) && capability(arch) < 120 }

// capability is 90 for "sm_90", 0 where it is no GPU.
func capability(arch string) (c int) {
	_, _ = fmt.Sscanf(arch, "sm_%d", &c)
	return c
}

// hasClusterKernel reports that the kind has such a kernel, which reads x and not the winners of indices.
func (s *Program) hasClusterKernel(code, kernel string) bool {
	return code == s.Code() && slices.Contains(s.kindKernels(), kernel)
}

// distribute gives what some threads own, for each strip, to about so many blocks, which have equally many of them.
func (g *Config) distribute(owned, parts, threads int64) {
	each := num.CeilDiv(owned, parts)
	g.Splits, g.Block, g.resident = num.CeilDiv(owned, each), threads*each, true
	g.Grid = g.Segments * g.Splits
}

// InCluster reports that the blocks which hold a strip are a cluster.
func (g *Config) InCluster() bool { return g.resident && g.Splits <= ClusterBlocks }
