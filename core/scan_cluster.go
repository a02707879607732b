package core

import "fmt"

// clusterBlocks is kClusterBlocks of cuda/scan_cluster.cuh: blocks of a cluster, at most.
const clusterBlocks = 16

// hasClusters reports that devices of an architecture have clusters of blocks.
func hasClusters(arch string) bool {
	var capability int
	_, _ = fmt.Sscanf(arch, "sm_%d", &capability) // 0 where it is no GPU
	return capability >= 90
}

// gather gives each strip to about so many blocks, which have equally many of its warps.
func (g *scanShape) gather(warps, parts int64) {
	each := ceil(warps, parts)
	g.parts, g.block, g.clustered = ceil(warps, each), 32*each, true
	g.grid = g.strips * g.parts
}
