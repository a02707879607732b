// Package embedding implements operations on tables of rows that are looked up by index: the
// backward of embedding bags and of plain embeddings, and the distinct rows of a list of indices.
package embedding

import (
	"math"
	"math/bits"
	"slices"

	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// EmbeddingBagBackward is the gradient of y[b] = reduce over the positions i of bag b of
// weight[indices[i]]. Bag b has the positions from offsets[b] up to the next offset. Positions with
// index PaddingIdx do not count; with IncludeLastOffset, neither do positions from the last offset
// on. Over all counted positions i of row v,
//
//	sum:   dweight[v] = sum per_sample_weights[i] dy[bag(i)]
//	mean:  dweight[v] = sum dy[bag(i)] / (counted positions of bag(i))
//	max:   dweight[v, d] = sum of dy[b, d] over the bags b with max_indices[b, d] = v
//	d_per_sample_weights[i] = dot(dy[bag(i)], weight[indices[i]])
//
// ScaleGradByFreq divides row v by the number of its positions. Every row is written once; rows
// without positions are zero. Sums are added in the order of positions.
//
// Operands: dy [NumBags, EmbeddingDim], indices [TotalIndices], offsets [NumBags], or [NumBags + 1]
// with IncludeLastOffset, per_sample_weights? [TotalIndices] (sum; of DType or float32),
// max_indices? [NumBags, EmbeddingDim] (max; the argmax that the forward saved: per element an
// index of its bag, or -1), weight? [NumEmbeddings, EmbeddingDim] -> dweight? [NumEmbeddings,
// EmbeddingDim], d_per_sample_weights? [TotalIndices] or, row by row, [NumBags, TotalIndices /
// NumBags] (sum; of DType or float32; needs weight). With an optimizer, weight [NumEmbeddings,
// EmbeddingDim] and options are outputs in the places of weight and dweight, and states follow (see
// Learning); d_per_sample_weights is of weight before the update.
type EmbeddingBagBackward struct {
	NumEmbeddings     int64         `json:"num_embeddings"`
	EmbeddingDim      int64         `json:"embedding_dim"`
	NumBags           int64         `json:"num_bags"`
	TotalIndices      int64         `json:"total_indices"`
	DType             tensor.DType  `json:"dtype"`
	Mode              string        `json:"mode"`         // "sum", "mean" or "max"
	IndexDType        tensor.DType  `json:"index_dtype"`  // int32 or int64
	OffsetDType       *tensor.DType `json:"offset_dtype"` // nil: IndexDType
	PaddingIdx        *int64        `json:"padding_idx"`  // in [-NumEmbeddings, NumEmbeddings); negative: from the end; nil: none
	IncludeLastOffset bool          `json:"include_last_offset"`
	ScaleGradByFreq   bool          `json:"scale_grad_by_freq"`
	Learning
}

// Names of the kernels of embedding bags.
const (
	KernelSorted       = "sorted"        // positions sorted by row, then summed: several launches
	KernelSingleLaunch = "single_launch" // one launch for few positions, without a workspace
)

var embeddingBag = ops.Register(&ops.Family{
	Name: "embedding_bag_backward", Category: "embedding", Image: "embedding_bag",
	Kinds:    []ops.KindRow{{Kernels: []string{KernelSorted, KernelSingleLaunch}}},
	Required: []string{"num_embeddings", "embedding_dim", "num_bags", "total_indices", "dtype"},
	Choices: []ops.Choice{
		ops.DTypes("dtype", tensor.Floats), ops.Words("mode", BagModes...), ops.DTypes("index_dtype", indexDTypes), ops.DTypes("offset_dtype", indexDTypes),
		ops.Words("optimizer", Optimizers...),
	},
	Decode: ops.DecodeAs[EmbeddingBagBackward],
})

// The operands of all families of embedding bags. bagOperands says where a problem has them.
const (
	bagDy = iota
	bagIndices
	bagOffsets
	BagSampleWeights
	BagMaxIndices
	bagWeight
	bagDweight
	BagDsample
	bagOptions
	bagState
	bagState2
	bagTables
	numBagOperands
)

// noOperand is the place of an operand that a problem does not have.
const noOperand = -1

// bagOperands are the places of the operands of embedding bags among the operands of a problem.
type bagOperands [numBagOperands]int

// operandsOf are the places of the operands, which are found by name.
func operandsOf(problem *ops.Problem) (places bagOperands) {
	for i, names := range [numBagOperands][]string{
		bagDy: {"dy"}, bagIndices: {"indices"}, bagOffsets: {"offsets"}, BagSampleWeights: {"per_sample_weights"},
		BagMaxIndices: {"max_indices"}, bagWeight: {"weight"}, bagDweight: {"dweight"}, BagDsample: {"d_per_sample_weights"},
		bagOptions: {"options"}, bagState: {"sum", "exp_avg"}, bagState2: {"exp_avg_sq"}, bagTables: {"tables"},
	} {
		places[i] = slices.IndexFunc(problem.Operands, func(o ops.Operand) bool { return slices.Contains(names, o.Name) })
	}
	if places[bagOptions] != noOperand { // the rows of the table take the place of their gradients
		places[bagDweight] = places[bagWeight]
	}
	return places
}

// of are operands of a problem in the order of those of embedding bags. Operands that the problem
// does not have are absent.
func (places *bagOperands) of(args []tensor.Tensor) []tensor.Tensor {
	all := make([]tensor.Tensor, numBagOperands)
	for i, at := range places {
		if at != noOperand {
			all[i] = args[at]
		}
	}
	return all
}

// BagModes are the reductions of embedding bags.
var BagModes = []string{"sum", "mean", "max"}

// Family is "embedding_bag_backward".
func (d EmbeddingBagBackward) Family() string { return embeddingBag.Name }

// Problem checks the descriptor. It implements ops.Descriptor.
func (d EmbeddingBagBackward) Problem() (*ops.Problem, error) {
	offsetDType := d.IndexDType
	if d.OffsetDType != nil {
		offsetDType = *d.OffsetDType
	}
	weight, dy, flat := []int64{d.NumEmbeddings, d.EmbeddingDim}, []int64{d.NumBags, d.EmbeddingDim}, []int64{d.TotalIndices}
	op := embeddingBag.Name
	if err := ops.FirstError(
		ops.CheckShape(op, "[num_embeddings, embedding_dim]", weight),
		ops.CheckShape(op, "[num_bags, embedding_dim]", dy),
		ops.CheckShape(op, "[num_embeddings]", weight[:1]), // where there are no columns
		ops.CheckShape(op, "[num_bags]", dy[:1]),
		ops.CheckShape(op, "[total_indices]", flat),
		ops.CheckElement(op, "dtype", d.DType, tensor.Floats),
		ops.CheckElement(op, "index_dtype", d.IndexDType, indexDTypes),
		ops.CheckElement(op, "offset_dtype", offsetDType, indexDTypes),
		d.checkOptions(),
	); err != nil {
		return nil, err
	}
	offsets := []int64{d.NumBags}
	if d.IncludeLastOffset {
		offsets[0]++
	}
	said := "as the descriptor says"
	element, index := []tensor.DType{d.DType}, []tensor.DType{d.IndexDType}
	sample, argmax := sampleOperands(d.DType, d.IndexDType, "like dy", flat, dy)
	rectangle := []int64{d.NumBags, ops.AnyExtent}
	if d.NumBags > 0 {
		rectangle[1] = d.TotalIndices / d.NumBags
	}
	dsample := sample
	dsample.Name, dsample.Out = "d_per_sample_weights", true
	if d.NumBags == 0 && d.TotalIndices == 0 || d.NumBags > 0 && d.TotalIndices%d.NumBags == 0 {
		dsample.Shapes = [][]int64{flat, rectangle}
	}
	table := []ops.Operand{
		{Name: "weight", Optional: true, DTypes: element, Like: "like dy", Shapes: [][]int64{weight}},
		{Name: "dweight", Out: true, Optional: true, DTypes: element, Like: "like dy", Shapes: [][]int64{weight}},
	}
	if d.learns() {
		table = d.tableOperands(weight, d.DType)
	}
	return &ops.Problem{
		Family: embeddingBag, Element: d.DType, Aux: d.IndexDType.String(), Traffic: d.traffic(),
		Operands: slices.Concat([]ops.Operand{
			{Name: "dy", DTypes: element, Like: said, Shapes: [][]int64{dy}},
			{Name: "indices", DTypes: index, Like: said, Shapes: [][]int64{flat}},
			{Name: "offsets", DTypes: []tensor.DType{offsetDType}, Like: said, Shapes: [][]int64{offsets}},
			sample, argmax,
		}, table, []ops.Operand{dsample}, d.stateOperands(weight, d.DType)),
		CheckPresence: func(args []tensor.Tensor) *errs.Error { return d.checkPresence(op, args) },
		CheckValues:   d.checkValues,
		Compile:       d.compile,
	}, nil
}

// Padding is the row of PaddingIdx, or -1.
func (d EmbeddingBagBackward) Padding() int64 { return ops.PaddingRow(d.PaddingIdx, d.NumEmbeddings) }

// traffic is the ideal memory traffic in bytes: dweight written, dy read, and per index one read
// and one sort pass. With an optimizer, each index has a row of its own, which is read and written,
// as are its states.
func (d EmbeddingBagBackward) traffic() int64 {
	rows := d.NumEmbeddings
	if d.learns() {
		arrays := 1 + len(StateNames[d.Optimizer])
		if d.isRowwise() { // a number for each row is next to nothing
			arrays = 1
		}
		rows = min(rows, d.TotalIndices) * int64(2*arrays)
	}
	high, elements := bits.Mul64(uint64(rows+d.NumBags), uint64(d.EmbeddingDim))
	if high != 0 || elements > math.MaxInt64/16 {
		return 0
	}
	return int64(elements)*d.DType.Size() + 16*d.TotalIndices
}
