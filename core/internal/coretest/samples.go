package coretest

import (
	"flag"

	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/embedding"
	"github.com/sternway/sternway/core/internal/ops/rope"
	"github.com/sternway/sternway/core/internal/ops/scan"
	"github.com/sternway/sternway/core/internal/ops/selective"
	"github.com/sternway/sternway/core/internal/tensor"
)

// Samples are problems of every family, among which every kernel of the family is the right one for
// some.
func Samples() []ops.Descriptor {
	shape := []int64{4, 6}
	samples := append([]ops.Descriptor{
		rope.RopeBackward{BatchSize: 2, NumHeads: 3, SeqLen: 4, HeadDim: 6},
		rope.RopeBackward{BatchSize: 2, NumHeads: 3, SeqLen: 4, HeadDim: 8, Pairing: "half", Layout: "bshd", NumKeyHeads: Given[int64](1)},
		rope.Rope{BatchSize: 1, NumHeads: 3, SeqLen: 4, HeadDim: 6, Layout: "thd"},
		BagOf("sum", 5, 3, 2, 7), BagOf("mean", 9, 8, 3, 5000), BagOf("max", 4, 2, 6, 9),
		embedding.EmbeddingBackward{NumEmbeddings: 5, EmbeddingDim: 3, NumIndices: 7, IndexDType: tensor.Int64},
		embedding.EmbeddingBackward{NumEmbeddings: 9, EmbeddingDim: 8, NumIndices: 5000, IndexDType: tensor.Int32},
		ForwardOf("sum", 5, 3, 2, 7), ForwardOf("mean", 9, 8, 3, 50), ForwardOf("max", 4, 2, 6, 9), TablesOf("sum"), TablesOf("max"),
		Learning(BagOf("sum", 5, 3, 2, 7), "adam"), Learning(BagOf("max", 4, 8, 6, 3000), "adagrad"),
		embedding.EmbeddingBackward{NumEmbeddings: 5, EmbeddingDim: 3, NumIndices: 7, IndexDType: tensor.Int64, Learning: embedding.Learning{Optimizer: "sgd"}},
		embedding.EmbeddingBagsBackward{EmbeddingBags: TablesOf("sum")},
		embedding.EmbeddingBagsBackward{EmbeddingBags: TablesOf("mean"), Learning: embedding.Learning{Optimizer: "rowwise_adagrad"}},
		embedding.UniqueRows{NumRows: 9, Total: 7}, embedding.UniqueRows{NumRows: 1 << 20, Total: 5}, embedding.UniqueRows{NumRows: 5, Total: 12000},
	}, elementSamples...)
	for i, kind := range scan.Kinds {
		d := scan.Scan{Kind: kind.Name, Shape: shape, Dim: int64(i%2) - 1, Reverse: i%2 == 1}
		if kind.ReadsIndices {
			d.Tie = []string{"first", "last"}[i%2]
		}
		samples = append(samples, d, scan.ScanBackward(d))
		if d.Carries = true; !kind.IsOwnGradient() {
			samples = append(samples, d)
		}
		samples = append(samples, scan.ScanBackward(d))
	}
	for _, d := range []scan.LinearRecurrence{{Shape: shape, Dim: 0, Reverse: true, BShape: []int64{1, 6}}, {Shape: shape, Dim: -1}, {Shape: []int64{}}} {
		samples = append(samples, d, scan.LinearRecurrenceBackward(d))
	}
	s := selective.SelectiveScan{Batch: 2, Dim: 4, Length: 5, N: 3, Groups: Given[int64](2), ConstantC: true, HasD: true, HasZ: true, HasBias: true, DeltaSoftplus: true}
	return append(samples, scan.Scan{Kind: "cumprod", Shape: []int64{}}, scan.ScanBackward{Kind: "cumprod", Shape: []int64{}},
		s, selective.SelectiveScanBackward(s))
}

// ElementsOf are the dtypes that a sample is instantiated in.
func ElementsOf(d ops.Descriptor) []tensor.DType { return ElementsOfFamily(ops.ByName[d.Family()]) }

// ElementsOfFamily are the dtypes that a family is instantiated in.
func ElementsOfFamily(f *ops.Family) []tensor.DType {
	if f.Elements == nil {
		return tensor.Floats
	}
	return f.Elements
}

// Given is a pointer to n, for optional fields of descriptors.
func Given[N any](n N) *N { return &n }

// Update makes tests rewrite their golden files.
var Update = flag.Bool("update", false, "rewrite the golden files of tests")
