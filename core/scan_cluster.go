package core

import (
	"fmt"
	"slices"
)

// clusterBlocks is kClusterBlocks of cuda/scan_cluster.cuh: blocks of a cluster, at most.
const clusterBlocks = 16

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
func (s *scanProgram) inClusters(code, kernel string) bool {
	return code == s.code() && slices.Contains(s.ownKernels(), kernel)
}

// gather gives what some threads own, for each strip, to about so many blocks, which have equally many of them.
func (g *scanShape) gather(owned, parts, threads int64) {
	each := ceil(owned, parts)
	g.parts, g.block, g.held = ceil(owned, each), threads*each, true
	g.grid = g.strips * g.parts
}

// clustered reports that the blocks which hold a strip are a cluster.
func (g *scanShape) clustered() bool { return g.held && g.parts <= clusterBlocks }
