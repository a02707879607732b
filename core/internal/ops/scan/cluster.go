package scan

import (
	"fmt"
	"slices"

	"github.com/sternway/sternway/core/internal/num"
)

// ClusterBlocks is kClusterBlocks of cuda/scan_cluster.cuh: blocks of a cluster, at most.
const ClusterBlocks = 16

// hasClusters reports that devices of an architecture have clusters of blocks; hasSlabs that the blocks also have room for slabs, as
// kClusters of cuda/scan_cluster.cuh and kSlabs of cuda/scan_slabs.cuh say.
func hasClusters(arch string) bool { return capability(arch) >= 90 }
func hasSlabs(arch string) bool    { return hasClusters(arch) && capability(arch) < 120 }

// capability is 90 for "sm_90", 0 where it is no GPU.
func capability(arch string) (c int) {
	_, _ = fmt.Sscanf(arch, "sm_%d", &c)
	return c
}

// inClusters reports that the kind has such a kernel, which reads x and not the winners of indices.
func (s *ScanProgram) inClusters(code, kernel string) bool {
	return code == s.Code() && slices.Contains(s.ownKernels(), kernel)
}

// gather gives what some threads own, for each strip, to about so many blocks, which have equally many of them.
func (g *ScanShape) gather(owned, parts, threads int64) {
	each := num.CeilDiv(owned, parts)
	g.Parts, g.Block, g.held = num.CeilDiv(owned, each), threads*each, true
	g.Grid = g.Strips * g.Parts
}

// Clustered reports that the blocks which hold a strip are a cluster.
func (g *ScanShape) Clustered() bool { return g.held && g.Parts <= ClusterBlocks }
