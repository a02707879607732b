package core

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core/driver"
)

func noClusters(*scanShape) int64 { return 0 }

// someClusters are as many as the blocks of 120 multiprocessors make.
func someClusters(g *scanShape) int64 {
	return 120 * min(2*max(192, g.block)/g.block, (228<<10)/(int64(g.shared)+pieceBeside)) / g.parts
}

func TestPieces(t *testing.T) {
	for _, c := range []struct {
		kind          string
		dtype         DType
		rows, length  int64
		clusters      bool // that the device has
		kernel        string
		parts, blocks int64 // of a row; of all
		block         uint32
	}{
		{"cumprod", Float32, 1024, 8192, true, "row", 1, 1024, 512},
		{"cumprod", Float32, 1024, 8196, false, "pieces", 3, 4 * 132, 96}, // four of them are side by side; of 9 warps, three
		{"cumprod", Float32, 1024, 12288, false, "pieces", 2, 2 * 132, 192},
		{"cumprod", Float32, 1024, 12288, true, "pieces", 6, 480, 64}, // four, as more read too much at once
		{"cumprod", Float32, 1024, 65536, false, "pieces", 11, 2 * 132, 192},
		{"cumprod", Float32, 1024, 65536, true, "pieces", 16, 352, 128},
		{"cumprod", Float32, 20, 65536, true, "pieces", 16, 320, 128},
		{"cumprod", Float32, 1024, 98304, true, "pieces", 16, 240, 192},
		{"cumprod", Float32, 1024, 98308, true, "pieces", 17, 15 * 17, 192}, // too long for a cluster
		{"cumprod", Float32, 1024, 65537, true, "long", 1, 2 * 132, 256},
		{"cumprod", Float32, 1024, 1<<18 + 4, true, "long", 1, 2 * 132, 256},
		{"cumprod", BFloat16, 1024, 3 * 16384, false, "pieces", 4, 2 * 132, 192},
		{"cumprod", BFloat16, 1024, 65536, true, "pieces", 16, 720, 64},
		{"cumprod", BFloat16, 1024, 50264, true, "pieces", 13, 715, 64},
		{"cumprod", BFloat16, 1024, 32768, true, "pieces", 8, 480, 64},
		{"logcumsumexp", BFloat16, 1024, 65536, true, "pieces", 16, 720, 64},
		{"logcumsumexp", BFloat16, 1024, 65536, false, "long", 1, 2 * 132, 256}, // rows enough for all blocks, of some tiles
		{"logcumsumexp", BFloat16, 1024, 8200, false, "pieces", 2, 4 * 132, 96},
		{"logcumsumexp", BFloat16, 397, 16384, false, "long", 1, 2 * 132, 256},
		{"logcumsumexp", BFloat16, 396, 16384, false, "pieces", 2, 3 * 132, 128}, // which leave half of all blocks idle in their second turn
		{"logcumsumexp", Float64, 1024, 65536, true, "pieces", 16, 240, 256},
		{"logcumsumexp", Float64, 1024, 32768, true, "pieces", 8, 240, 256}, // more read too little at once
		{"cumprod", Float64, 1024, 65536, false, "pieces", 16, 256, 256},
		{"cumprod", Float64, 100, 65536, false, "pieces", 16, 256, 256},
	} {
		about := fmt.Sprintf("%+v", c)
		fake := (&fakeCUDA{devices: 1, units: 132}).install(t)
		if c.clusters {
			fake.clusters = func(l *driver.Launch) int {
				return int(someClusters(&scanShape{block: int64(l.Block), parts: int64(l.Cluster), shared: l.Shared}))
			}
		}
		plan, err := Select(ScanBackward{Kind: c.kind, Shape: []int64{c.rows, c.length}, DType: c.dtype, Dim: 1}, CUDA(0), Preference{})
		require.NoError(t, err)
		args, workspace := deviceArgs(plan, "dy", "x", "dx")
		require.NoError(t, plan.RunOrdered(0, workspace, args))
		at := slices.IndexFunc(fake.launches, func(l fakeLaunch) bool { return l.symbol != "scan_clear" })
		own := fake.launches[at]
		w := wordsOfScan(t, &own)
		require.Contains(t, own.symbol, "_"+c.kernel+"_", about)
		require.Equal(t, []int64{c.parts, c.blocks, int64(c.block)}, []int64{w.get("parts"), int64(own.grid), int64(own.block)}, about)
		if c.kernel != "pieces" {
			continue
		}
		require.Equal(t, "pieces", plan.SKU().Kernel)
		again := wordsOfScan(t, &fake.launches[at+1])
		require.NotZero(t, again.get("flags")&scanMarked, "rows that are marked are done again")
		require.Zero(t, again.get("flags")&scanCluster+int64(fake.launches[at+1].cluster))
		require.Equal(t, 1, at, "what is known of rows is forgotten")
		marks, cleared := align16(4*c.rows), 16*int64(fake.launches[0].words[1])
		require.Equal(t, w.get("skip"), cleared)
		if clustered := own.cluster > 0; clustered {
			require.Equal(t, []int64{c.parts, scanCluster, marks}, []int64{int64(own.cluster), w.get("flags") & scanCluster, cleared}, about)
			require.False(t, own.together)
			continue
		}
		require.Zero(t, w.get("flags")&scanCluster)
		require.True(t, own.together, "blocks that wait for each other are on the device at once")
		require.Equal(t, marks, w.get("height"), "what is told begins behind the marks")
		require.GreaterOrEqual(t, cleared, marks+2*packet*c.rows*c.parts)
	}
}

func TestPiecesThatFindNoRoom(t *testing.T) {
	d := ScanBackward{Kind: "cumprod", Shape: []int64{64, 98304}, DType: Float32, Dim: 1} // 16 pieces
	for _, c := range []struct {
		units, shared, clusters int
		sku, kernel             string
		cluster                 uint32
	}{
		{8, 227 << 10, 0, "pieces", "pieces", 0}, {7, 227 << 10, 0, "long", "long", 0}, {15, 101 << 10, 0, "pieces", "long", 0},
		{15, 101 << 10, 1, "pieces", "pieces", 16}, {132, 227 << 10, 13, "pieces", "pieces", 16}, {132, 227 << 10, 12, "pieces", "pieces", 0}, // of 16 rows
	} {
		fake := (&fakeCUDA{devices: 1, units: c.units, shared: c.shared, clusters: func(*driver.Launch) int { return c.clusters }}).install(t)
		plan, err := Select(d, CUDA(0), Preference{})
		require.NoError(t, err)
		require.Equal(t, c.sku, plan.SKU().Kernel)
		args, workspace := deviceArgs(plan, "dy", "x", "dx")
		require.NoError(t, plan.RunOrdered(0, workspace, args))
		own := fake.launches[slices.IndexFunc(fake.launches, func(l fakeLaunch) bool { return l.symbol != "scan_clear" })]
		require.Contains(t, own.symbol, c.kernel, "%d multiprocessors", c.units)
		require.Equal(t, c.cluster, own.cluster, "%+v", c)
	}
}

// Where clusters that ask for more shared memory find no place, they ask for no more than they need.
func TestPiecesThatReadAllAtOnce(t *testing.T) {
	fake := (&fakeCUDA{devices: 1, units: 132, clusters: func(l *driver.Launch) int {
		if l.Shared > 3*16*l.Block*pieceVectors {
			return 0
		}
		return 120
	}}).install(t)
	plan, err := Select(ScanBackward{Kind: "cumprod", Shape: []int64{1024, 12288}, DType: Float32, Dim: 1}, CUDA(0), Preference{})
	require.NoError(t, err)
	args, workspace := deviceArgs(plan, "dy", "x", "dx")
	require.NoError(t, plan.RunOrdered(0, workspace, args))
	own := fake.launches[slices.IndexFunc(fake.launches, func(l fakeLaunch) bool { return l.symbol != "scan_clear" })]
	require.Equal(t, []uint32{6, 720}, []uint32{own.cluster, uint32(own.grid)})
}
