package core_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/launch"
)

// This file compares the parts that CTAs hold with the arguments of the kernels, read as the CUDA
// sources read them.

// argumentsOf are the arguments of kernels, by the beginning of their names.
var argumentsOf = []struct {
	kernel, image, layout string
	require               func(t *testing.T, l *launchFacts, word func(name string) int64)
}{
	{"lerp_", "mapreduce", "IterSpace", requireElementwise("lerp")},
	{"dequantize_", "mapreduce", "IterSpace", requireElementwise("dequantize")},
	{"fake_quantize_", "mapreduce", "IterSpace", requireElementwise("dequantize")},
	{"rope_", "rope", "RopeProblem", requireRope},
	{"embedding_bag_", "embedding_bag", "BagArgs", requireBags},
}

func requireWords(t *testing.T, l *launchFacts, words []uint64) {
	for _, a := range argumentsOf {
		if strings.HasPrefix(l.Kernel, a.kernel) {
			at, _ := coretest.WordsOf(t, a.image, a.layout)
			a.require(t, l, func(name string) int64 {
				require.Contains(t, at, name)
				return int64(words[at[name]])
			})
		}
	}
}

// requireBlock compares the rows and columns of a whole block, clipped to the matrix.
func requireBlock(t *testing.T, l *launchFacts, d *launch.Division, rows, columns int64) {
	require.Equal(t, []int64{min(rows, d.Rows), min(columns, d.Columns)}, []int64{d.BlockRows, d.BlockColumns}, "%s: %+v", l.Kernel, d)
}

// requireElementwise reads the fields as map_reduce.cuh does.
func requireElementwise(image string) func(t *testing.T, l *launchFacts, word func(name string) int64) {
	return func(t *testing.T, l *launchFacts, word func(name string) int64) {
		d, names := &l.Divisions[0], strings.Split(l.Kernel, "_")
		kind, dtype := names[len(names)-2], names[len(names)-1]
		vector := map[string]int64{"f64": 2, "f32": 4, "f16": 8, "bf16": 8}[dtype]
		unroll := int64(coretest.KernelConstants(t, image, l.Kernel)[strings.ToUpper(kind)+"_UNROLL"])
		tile := word("lanes") * unroll * vector
		held := []int64{unroll, vector}
		switch kind {
		case "map":
			require.Equal(t, word("kept_size"), d.Rows)
			requireBlock(t, l, d, int64(l.Threads)/word("lanes"), tile)
		case "rows":
			sums := int64(l.Threads) / word("group")
			if word("reduced_size") > 1 { // columns are work items
				requireBlock(t, l, d, sums, word("chunk"))
			} else {
				requireBlock(t, l, d, sums, word("chunk")*tile)
			}
		case "columns":
			held[0] = 1
			require.Equal(t, []int64{word("kept_size"), word("reduced_size")}, []int64{d.Groups, d.Rows})
			requireBlock(t, l, d, word("chunk"), word("lanes")*vector)
		}
		if word("wide") == 0 {
			held = []int64{held[0] * vector, 1}
		}
		require.Equal(t, held, []int64{d.ThreadVectors, d.VectorElements}, l.Kernel)
	}
}

// requireRope reads the fields as rope.cu does. A unit is the part of a token that a thread holds.
func requireRope(t *testing.T, l *launchFacts, word func(name string) int64) {
	lanes, units := int64(1)<<word("lanes"), word("units")
	for i := range l.Divisions {
		d := &l.Divisions[i]
		columns := lanes
		if d.ColumnUnit == "tokens" {
			columns = max(1, lanes/units)
			require.True(t, lanes%units == 0 || word("tiles") == 1, "whole tokens")
		}
		require.Equal(t, word("vector"), d.VectorElements)
		if word("most") > 1 {
			require.Equal(t, []int64{word("most"), word("stride")}, []int64{d.Rows, d.Columns})
			requireBlock(t, l, d, d.Rows, columns)
			continue
		}
		require.Equal(t, min(word("run"), d.Rows), d.ThreadRows)
		requireBlock(t, l, d, word("run")*int64(l.Threads)/lanes, columns)
	}
}

// requireBags reads the fields as radix_sort.cuh, single_launch.cuh and row_sums.cuh do.
func requireBags(t *testing.T, l *launchFacts, word func(name string) int64) {
	d, tile := &l.Divisions[0], coretest.SourceConstant(t, "embedding_bag", "kTile")
	name := strings.TrimPrefix(l.Kernel, "embedding_bag_backward_")
	switch groups := int64(l.Threads) / max(word("lanes"), 1); {
	case slices.Contains([]string{"keys", "count", "scatter"}, name):
		require.Equal(t, word("total"), d.Columns)
		requireBlock(t, l, d, 1, word("tiles")*tile)
	case strings.HasPrefix(name, "single_launch"):
		require.Equal(t, []int64{word("rows"), word("columns")}, []int64{d.Rows, d.Columns})
		requireBlock(t, l, d, word("tiles"), word("columns"))
	case strings.HasPrefix(name, "sample_weights"):
		requireBlock(t, l, d, 1, groups*coretest.SourceConstant(t, "embedding_bag", "kStretch"))
	case strings.HasPrefix(name, "sorted") && word("slices") == 1:
		requireBlock(t, l, d, 1, groups*word("unit"))
	case strings.HasPrefix(name, "sorted"):
		requireBlock(t, l, d, 1, groups)
	}
}
