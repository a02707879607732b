package embedding

import (
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file is the family of embedding bags forward: descriptor, operands and checks.

// EmbeddingBag reduces rows of a table: y[b] is the sum, the mean or the maximum of
// weight[indices[i]] over the positions i of bag b. Bag b has the positions from offsets[b] up to
// the next offset. Positions with index PaddingIdx do not count; with IncludeLastOffset, neither do
// positions from the last offset on. Over all counted positions i of bag b,
//
//	sum:   y[b] = sum per_sample_weights[i] weight[indices[i]]
//	mean:  y[b] = sum weight[indices[i]] / (counted positions of bag b)
//	max:   y[b, d] = max weight[indices[i], d], found first in row max_indices[b, d]
//
// A bag without counted positions is 0, and its max_indices are -1. In mode max a NaN is the
// maximum if it comes first, and else it is passed over, as in torch.
//
// Operands: weight [NumEmbeddings, EmbeddingDim], indices [TotalIndices], offsets [NumBags], or
// [NumBags + 1] with IncludeLastOffset, per_sample_weights? [TotalIndices] (sum; of DType or
// float32) -> y [NumBags, EmbeddingDim], max_indices? [NumBags, EmbeddingDim] (max; of IndexDType
// or int64).
type EmbeddingBag struct {
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
}

// bagForwardChoices are the fields of both families that take one of some names.
var bagForwardChoices = []ops.Choice{
	ops.DTypes("dtype", tensor.Floats), ops.Words("mode", BagModes...), ops.DTypes("index_dtype", indexDTypes), ops.DTypes("offset_dtype", indexDTypes),
}

// KernelGather is the name of the only kernel: a group of threads for each bag gathers its rows.
const KernelGather = "gather"

var bagForward = ops.Register(&ops.Family{
	Name: "embedding_bag", Category: "embedding", Image: "bag_forward",
	Kinds:    []ops.KindRow{{Kernels: []string{KernelGather}}},
	Required: []string{"num_embeddings", "embedding_dim", "num_bags", "total_indices", "dtype"},
	Choices:  bagForwardChoices,
	Decode:   ops.DecodeAs[EmbeddingBag],
})

// The operands of both families. forwardOperands says where a problem has them.
const (
	forwardWeight = iota
	forwardIndices
	forwardOffsets
	forwardTables
	forwardSampleWeights
	forwardY
	forwardMaxIndices
	numForwardOperands
)

// forwardOperands are the places of the operands among the operands of a problem, or noOperand.
type forwardOperands [numForwardOperands]int

// forwardOperandsOf are the places of the operands, which are found by name.
func forwardOperandsOf(problem *ops.Problem) (places forwardOperands) {
	for i, name := range [numForwardOperands]string{"weight", "indices", "offsets", "tables", "per_sample_weights", "y", "max_indices"} {
		places[i] = slices.IndexFunc(problem.Operands, func(o ops.Operand) bool { return o.Name == name })
	}
	return places
}

// Family is "embedding_bag".
func (d EmbeddingBag) Family() string { return bagForward.Name }

// Problem checks the descriptor. It implements ops.Descriptor.
func (d EmbeddingBag) Problem() (*ops.Problem, error) {
	offsetDType := d.IndexDType
	if d.OffsetDType != nil {
		offsetDType = *d.OffsetDType
	}
	weight, y, flat := []int64{d.NumEmbeddings, d.EmbeddingDim}, []int64{d.NumBags, d.EmbeddingDim}, []int64{d.TotalIndices}
	op := bagForward.Name
	if err := ops.FirstError(
		ops.CheckShape(op, "[num_embeddings, embedding_dim]", weight),
		ops.CheckShape(op, "[num_bags, embedding_dim]", y),
		ops.CheckShape(op, "[num_embeddings]", weight[:1]), // where there are no columns
		ops.CheckShape(op, "[num_bags]", y[:1]),
		ops.CheckShape(op, "[total_indices]", flat),
		ops.CheckElement(op, "dtype", d.DType, tensor.Floats),
		ops.CheckElement(op, "index_dtype", d.IndexDType, indexDTypes),
		ops.CheckElement(op, "offset_dtype", offsetDType, indexDTypes),
		checkBagMode(op, d.Mode),
		ops.CheckPadding(op, d.PaddingIdx, d.NumEmbeddings),
	); err != nil {
		return nil, err
	}
	offsets := []int64{d.NumBags}
	if d.IncludeLastOffset {
		offsets[0]++
	}
	said := "as the descriptor says"
	problem := &ops.Problem{
		Family: bagForward, Element: d.DType, Aux: d.IndexDType.String(),
		Traffic: gatherTraffic(d.DType, d.TotalIndices, d.NumBags, d.EmbeddingDim),
		Operands: slices.Concat([]ops.Operand{
			{Name: "weight", DTypes: []tensor.DType{d.DType}, Like: said, Shapes: [][]int64{weight}},
			{Name: "indices", DTypes: []tensor.DType{d.IndexDType}, Like: said, Shapes: [][]int64{flat}},
			{Name: "offsets", DTypes: []tensor.DType{offsetDType}, Like: said, Shapes: [][]int64{offsets}},
		}, reducedOperands(d.DType, d.IndexDType, flat, y)),
		CheckValues: d.checkValues,
		Compile:     d.compile,
	}
	problem.CheckPresence = presenceOf(op, d.Mode, forwardOperandsOf(problem))
	return problem, nil
}

func checkBagMode(op, mode string) error {
	if !slices.Contains(BagModes, mode) {
		return errs.New(errs.Unsupported, op, "mode", errs.OrList(BagModes), fmt.Sprintf("%q", errs.Clip(mode)), "")
	}
	return nil
}

// reducedOperands are the operands of both families from per_sample_weights on.
func reducedOperands(element, index tensor.DType, flat, y []int64) []ops.Operand {
	sample, argmax := sampleOperands(element, index, "like weight", flat, y)
	argmax.Out = true
	return []ops.Operand{
		sample,
		{Name: "y", Out: true, DTypes: []tensor.DType{element}, Like: "like weight", Shapes: [][]int64{y}},
		argmax,
	}
}

// sampleOperands are per_sample_weights and max_indices, as inputs. like: why the weights have the
// dtype of the table.
func sampleOperands(element, index tensor.DType, like string, flat, y []int64) (sample, argmax ops.Operand) {
	samples, argmaxes := []tensor.DType{element}, []tensor.DType{tensor.Int64}
	if element != tensor.Float32 { // 16-bit tables are often used with float32 weights
		samples, like = append(samples, tensor.Float32), ""
	}
	if index == tensor.Int32 {
		argmaxes = []tensor.DType{tensor.Int32, tensor.Int64}
	}
	return ops.Operand{Name: "per_sample_weights", Optional: true, DTypes: samples, Like: like, Shapes: [][]int64{flat}},
		ops.Operand{Name: "max_indices", Optional: true, DTypes: argmaxes, Shapes: [][]int64{y}}
}

// gatherTraffic is the ideal memory traffic in bytes: a row read for each index, y written, and the
// indices. columns: the mean width of a row.
func gatherTraffic(element tensor.DType, total, bags, columns int64) int64 {
	high, elements := bits.Mul64(uint64(total+bags), uint64(columns))
	if high != 0 || elements > math.MaxInt64/16 {
		return 0
	}
	return int64(elements)*element.Size() + 8*total
}

// presenceOf refuses operands that a mode does not have.
func presenceOf(op, mode string, places forwardOperands) func(args []tensor.Tensor) *errs.Error {
	return func(args []tensor.Tensor) *errs.Error {
		switch {
		case mode != "sum" && args[places[forwardSampleWeights]].Given():
			return errs.New(errs.InvalidProblem, op, "per_sample_weights", "left out in mode "+mode, "an operand", `only mode "sum" has weights for samples`)
		case mode != "max" && args[places[forwardMaxIndices]].Given():
			return errs.New(errs.InvalidProblem, op, "max_indices", "left out in mode "+mode, "an operand", "")
		}
		return nil
	}
}

// checkValues refuses offsets out of order and indices out of range. The operands are in host
// memory.
func (d EmbeddingBag) checkValues(args []tensor.Tensor) *errs.Error {
	op, offsets := bagForward.Name, &args[forwardOffsets]
	if b := badOffset(offsets, d.TotalIndices); b >= 0 {
		wanted := fmt.Sprintf("in order, from 0 to at most %d indices", d.TotalIndices)
		return errs.New(errs.InvalidProblem, op, "offsets", wanted, fmt.Sprintf("%d at bag %d", integersOf(offsets)(b), b), "")
	}
	if k, invalid := firstOutside(&args[forwardIndices], 0, d.NumEmbeddings); invalid != nil {
		return ops.IndexOutOfRange(op, "indices", fmt.Sprint("position ", k), *invalid, d.NumEmbeddings)
	}
	return nil
}

func (d EmbeddingBag) compile(problem *ops.Problem, _ int, cuda bool, _ ops.Preference) (ops.Program, error) {
	if cuda { // kernels number rows, bags and positions with 32-bit integers
		counts := []string{"num_embeddings", "embedding_dim", "num_bags", "total_indices"}
		if err := ops.CheckCounts(problem.Op(), counts, d.NumEmbeddings, d.EmbeddingDim, d.NumBags, d.TotalIndices); err != nil {
			return nil, err
		}
	}
	return &ForwardProgram{
		operands: forwardOperandsOf(problem), dtype: d.DType, mode: d.Mode,
		tables: 1, bags: d.NumBags, total: d.TotalIndices, rows: d.NumEmbeddings, widest: d.EmbeddingDim, columns: d.EmbeddingDim,
		padding: ops.PaddingRow(d.PaddingIdx, d.NumEmbeddings), hasLastOffset: d.IncludeLastOffset,
	}, nil
}

// ForwardProgram is the program of an EmbeddingBag or of an EmbeddingBags. Every bag is reduced in
// the order of its positions, so the bits repeat.
type ForwardProgram struct {
	operands      forwardOperands
	dtype         tensor.DType
	mode          string
	tables, bags  int64 // bags of each table
	total         int64 // indices
	rows          int64 // of all tables
	widest        int64 // columns of the widest table
	columns       int64 // of y
	padding       int64 // row that does not count, or -1
	hasLastOffset bool  // the offsets include the end of the last bag
	isAligned     bool  // many tables: rows begin, and end, at multiples of 16 bytes
}

// Kernel implements ops.Program.
func (p *ForwardProgram) Kernel() string { return KernelGather }

// Workspace implements ops.Program.
func (p *ForwardProgram) Workspace() int64 { return 0 }

// InPlace implements ops.Program.
func (p *ForwardProgram) InPlace([]tensor.Tensor, int) bool { return false }

// argsOf are operands of the program's problem in the order of forwardOperands. Operands that the
// problem does not have are absent.
func (p *ForwardProgram) argsOf(args []tensor.Tensor) (all [numForwardOperands]tensor.Tensor) {
	for i, at := range p.operands {
		if at != noOperand {
			all[i] = args[at]
		}
	}
	return all
}
