package core

import (
	"fmt"
	"slices"
)

// clusterBlocks is kClusterBlocks of cuda/scan_cluster.cuh: blocks of a cluster, at most.
const clusterBlocks = 16

// hasClusters reports that devices of an architecture have clusters of blocks.
func hasClusters(arch string) bool {
	var capability int
	_, _ = fmt.Sscanf(arch, "sm_%d", &capability) // 0 where it is no GPU
	return capability >= 90
}

// inClusters reports that the kind has such a kernel, which reads x and not the winners of indices.
func (s *scanProgram) inClusters(code, kernel string) bool {
	return code == s.code() && slices.Contains(s.ownKernels(), kernel)
}

// gather gives each strip to about so many blocks, which have equally many of its warps.
func (g *scanShape) gather(warps, parts int64) {
	each := ceil(warps, parts)
	g.parts, g.block, g.clustered = ceil(warps, each), 32*each, true
	g.grid = g.strips * g.parts
}
