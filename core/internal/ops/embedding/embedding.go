package embedding

import (
	"fmt"

	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file is the family of embeddings without bags. Position i is a bag of its own, number i, so
// the programs and kernels of embedding bags run it in mode sum. They neither read nor make
// offsets.

// EmbeddingBackward is the gradient of y[i] = weight[indices[i]]. Over all positions i of row v,
//
//	dweight[v] = sum dy[i]
//
// Positions with index PaddingIdx do not count. ScaleGradByFreq divides row v by the number of its
// positions. Every row is written once; rows without positions are zero. Sums are added in the
// order of positions.
//
// Operands: dy [NumIndices, EmbeddingDim], indices [NumIndices] -> dweight [NumEmbeddings,
// EmbeddingDim]; with an optimizer, in place of dweight, weight [NumEmbeddings, EmbeddingDim],
// options and states (see Learning).
type EmbeddingBackward struct {
	NumEmbeddings   int64        `json:"num_embeddings"`
	EmbeddingDim    int64        `json:"embedding_dim"`
	NumIndices      int64        `json:"num_indices"`
	DType           tensor.DType `json:"dtype"`
	IndexDType      tensor.DType `json:"index_dtype"` // int32 or int64
	PaddingIdx      *int64       `json:"padding_idx"` // in [-NumEmbeddings, NumEmbeddings); negative: from the end; nil: none
	ScaleGradByFreq bool         `json:"scale_grad_by_freq"`
	Learning
}

// The kernels are those of embedding bags: an image of its own would hold the same code again.
var embedding = ops.Register(&ops.Family{
	Name: "embedding_backward", Category: embeddingBag.Category, Image: embeddingBag.Image, Kinds: embeddingBag.Kinds,
	Required: []string{"num_embeddings", "embedding_dim", "num_indices", "dtype"},
	Choices:  []ops.Choice{ops.DTypes("dtype", tensor.Floats), ops.DTypes("index_dtype", indexDTypes), ops.Words("optimizer", Optimizers...)},
	Decode:   ops.DecodeAs[EmbeddingBackward],
})

// Family is "embedding_backward".
func (d EmbeddingBackward) Family() string { return embedding.Name }

// Problem checks the descriptor. It implements ops.Descriptor.
func (d EmbeddingBackward) Problem() (*ops.Problem, error) {
	weight, dy := []int64{d.NumEmbeddings, d.EmbeddingDim}, []int64{d.NumIndices, d.EmbeddingDim}
	op := embedding.Name
	if err := ops.FirstError(
		ops.CheckShape(op, "[num_embeddings, embedding_dim]", weight),
		ops.CheckShape(op, "[num_indices, embedding_dim]", dy),
		ops.CheckShape(op, "[num_embeddings]", weight[:1]), // where there are no columns
		ops.CheckShape(op, "[num_indices]", dy[:1]),
		ops.CheckElement(op, "dtype", d.DType, tensor.Floats),
		ops.CheckElement(op, "index_dtype", d.IndexDType, indexDTypes),
		ops.CheckPadding(op, d.PaddingIdx, d.NumEmbeddings),
		d.checkLearning(op, d.DType),
	); err != nil {
		return nil, err
	}
	element, said := []tensor.DType{d.DType}, "as the descriptor says"
	table := []ops.Operand{{Name: "dweight", Out: true, DTypes: element, Like: "like dy", Shapes: [][]int64{weight}}}
	if d.learns() {
		table = append(d.tableOperands(weight, d.DType), d.stateOperands(weight, d.DType)...)
	}
	return &ops.Problem{
		Family: embedding, Element: d.DType, Aux: d.IndexDType.String(), Traffic: d.bags().traffic(),
		Operands: append([]ops.Operand{
			{Name: "dy", DTypes: element, Like: said, Shapes: [][]int64{dy}},
			{Name: "indices", DTypes: []tensor.DType{d.IndexDType}, Like: said, Shapes: [][]int64{dy[:1]}},
		}, table...),
		CheckValues: func(args []tensor.Tensor) *errs.Error {
			if k, invalid := firstOutside(&args[bagIndices], 0, d.NumEmbeddings); invalid != nil {
				return ops.IndexOutOfRange(op, "indices", fmt.Sprint("position ", k), *invalid, d.NumEmbeddings)
			}
			return nil
		},
		Compile: d.compile,
	}, nil
}

// bags is the problem as one of bags of one position each.
func (d EmbeddingBackward) bags() EmbeddingBagBackward {
	return EmbeddingBagBackward{
		NumEmbeddings: d.NumEmbeddings, EmbeddingDim: d.EmbeddingDim, NumBags: d.NumIndices, TotalIndices: d.NumIndices,
		DType: d.DType, Mode: "sum", IndexDType: d.IndexDType, PaddingIdx: d.PaddingIdx, ScaleGradByFreq: d.ScaleGradByFreq,
		Learning: d.Learning,
	}
}

func (d EmbeddingBackward) compile(problem *ops.Problem, numSMs int, cuda bool, preference ops.Preference) (ops.Program, error) {
	if cuda { // entries of the sort on a GPU are pairs of 32-bit integers
		counts := []string{"num_embeddings", "embedding_dim", "num_indices"}
		if err := ops.CheckCounts(problem.Op(), counts, d.NumEmbeddings, d.EmbeddingDim, d.NumIndices); err != nil {
			return nil, err
		}
	}
	return d.bags().program(problem, nil, numSMs, cuda, preference)
}

// bagless reports whether each position is a bag of its own, without offsets.
func (p *BagProgram) bagless() bool { return p.operands[bagOffsets] == noOperand }
