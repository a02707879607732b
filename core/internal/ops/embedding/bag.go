// Package embedding holds the gradients of a table of rows that are looked up by index: embedding bags, and the rows of an index list
// without repetitions.
package embedding

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// EmbeddingBagBackward is the gradient of y[b] = reduce over the positions i of bag b of weight[indices[i]]. Bag b has the positions
// from offsets[b] to the next offset; those whose index is PaddingIdx do not count, nor do any behind the last offset where
// IncludeLastOffset gives one. Over all positions i that count and hold row v,
//
//	sum:   dweight[v] = sum per_sample_weights[i] dy[bag(i)]
//	mean:  dweight[v] = sum dy[bag(i)] / (positions of bag(i) that count)
//	max:   dweight[v, d] = sum of dy[b, d] over the bags b with max_indices[b, d] = v
//	d_per_sample_weights[i] = dot(dy[bag(i)], weight[indices[i]])
//
// ScaleGradByFreq divides row v by the number of its positions. Every row is written once, rows without a position as zeros; sums are
// made in the order of positions.
//
// Operands: dy [NumBags, EmbeddingDim], indices [TotalIndices], offsets [NumBags], or [NumBags + 1] with IncludeLastOffset,
// per_sample_weights? [TotalIndices] (sum; of DType or float32), max_indices? [NumBags, EmbeddingDim] (max; the winners that the forward saved, each an index
// of its bag, or -1), weight? [NumEmbeddings, EmbeddingDim] -> dweight? [NumEmbeddings, EmbeddingDim],
// d_per_sample_weights? [TotalIndices], or [NumBags, TotalIndices / NumBags], whose rows follow each other (sum; of DType or float32;
// needs weight).
type EmbeddingBagBackward struct {
	NumEmbeddings     int64         `json:"num_embeddings"`
	EmbeddingDim      int64         `json:"embedding_dim"`
	NumBags           int64         `json:"num_bags"`
	TotalIndices      int64         `json:"total_indices"`
	DType             tensor.DType  `json:"dtype"`
	Mode              string        `json:"mode"`         // "sum", "mean" or "max"
	IndexDType        tensor.DType  `json:"index_dtype"`  // int32 or int64
	OffsetDType       *tensor.DType `json:"offset_dtype"` // nil: IndexDType
	PaddingIdx        *int64        `json:"padding_idx"`  // from -NumEmbeddings on, negative ones counted from the end; nil: none
	IncludeLastOffset bool          `json:"include_last_offset"`
	ScaleGradByFreq   bool          `json:"scale_grad_by_freq"`
}

var embeddingBag = ops.Register(&ops.Family{
	Name: "embedding_bag_backward", Category: "embedding", Image: "embedding_bag",
	Kinds:    []ops.KindRow{{Kernels: []string{"sorted", "few"}}},
	Required: []string{"num_embeddings", "embedding_dim", "num_bags", "total_indices", "dtype"}, Decode: ops.DecodeAs[EmbeddingBagBackward],
})

// Operands by number.
const (
	bagDy = iota
	bagIndices
	bagOffsets
	BagSampleWeights
	BagMaxIndices
	bagWeight
	bagDweight
	BagDsample
)

var BagModes = []string{"sum", "mean", "max"}

// Family is "embedding_bag_backward".
func (d EmbeddingBagBackward) Family() string { return embeddingBag.Name }

func (d EmbeddingBagBackward) Problem() (*ops.Problem, error) {
	offsetDType, integers := d.IndexDType, []tensor.DType{tensor.Int32, tensor.Int64}
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
		ops.CheckElement(op, "index_dtype", d.IndexDType, integers),
		ops.CheckElement(op, "offset_dtype", offsetDType, integers),
		d.checkOptions(),
	); err != nil {
		return nil, err
	}
	offsets := []int64{d.NumBags}
	if d.IncludeLastOffset {
		offsets[0]++
	}
	argmaxDTypes := []tensor.DType{d.IndexDType, tensor.Int64}
	if d.IndexDType == tensor.Int64 {
		argmaxDTypes = argmaxDTypes[1:]
	}
	said := "as the descriptor says"
	element, index := []tensor.DType{d.DType}, []tensor.DType{d.IndexDType}
	sample, sampleLike := element, "like dy"
	if d.DType != tensor.Float32 { // a 16-bit table often has weights of more precision
		sample, sampleLike = []tensor.DType{d.DType, tensor.Float32}, ""
	}
	rectangle := []int64{d.NumBags, ops.AnyExtent}
	if d.NumBags > 0 {
		rectangle[1] = d.TotalIndices / d.NumBags
	}
	dsample := [][]int64{flat}
	if d.NumBags == 0 && d.TotalIndices == 0 || d.NumBags > 0 && d.TotalIndices%d.NumBags == 0 {
		dsample = append(dsample, rectangle)
	}
	return &ops.Problem{
		Family: embeddingBag, Element: d.DType, Aux: d.IndexDType.String(), Traffic: d.traffic(),
		Operands: []ops.Operand{
			{Name: "dy", Dtypes: element, Like: said, Shapes: [][]int64{dy}},
			{Name: "indices", Dtypes: index, Like: said, Shapes: [][]int64{flat}},
			{Name: "offsets", Dtypes: []tensor.DType{offsetDType}, Like: said, Shapes: [][]int64{offsets}},
			{Name: "per_sample_weights", Optional: true, Dtypes: sample, Like: sampleLike, Shapes: [][]int64{flat}},
			{Name: "max_indices", Optional: true, Dtypes: argmaxDTypes, Shapes: [][]int64{dy}},
			{Name: "weight", Optional: true, Dtypes: element, Like: "like dy", Shapes: [][]int64{weight}},
			{Name: "dweight", Out: true, Optional: true, Dtypes: element, Like: "like dy", Shapes: [][]int64{weight}},
			{Name: "d_per_sample_weights", Out: true, Optional: true, Dtypes: sample, Like: sampleLike, Shapes: dsample},
		},
		CheckPresence: d.checkPresence,
		CheckValues:   d.checkValues,
		Compile:       d.compile,
	}, nil
}

func (d EmbeddingBagBackward) checkOptions() error {
	op := embeddingBag.Name
	if !slices.Contains(BagModes, d.Mode) {
		return errs.New(errs.Unsupported, op, "mode", errs.OrList(BagModes), fmt.Sprintf("%q", errs.Clip(d.Mode)), "")
	}
	if d.Mode == "max" && d.ScaleGradByFreq {
		return errs.New(errs.Unsupported, op, "scale_grad_by_freq", "false in mode max", "true", "")
	}
	return ops.CheckPadding(op, d.PaddingIdx, d.NumEmbeddings)
}

// Padding is the row that counts nowhere, or -1.
func (d EmbeddingBagBackward) Padding() int64 { return ops.PaddingRow(d.PaddingIdx, d.NumEmbeddings) }

// traffic: dweight is written once and dy read once; an index is read, and an entry sorted in one pass.
func (d EmbeddingBagBackward) traffic() int64 {
	high, elements := bits.Mul64(uint64(d.NumEmbeddings+d.NumBags), uint64(d.EmbeddingDim))
	if high != 0 || elements > math.MaxInt64/16 {
		return 0
	}
	return int64(elements)*d.DType.Size() + 16*d.TotalIndices
}

func (d EmbeddingBagBackward) checkPresence(args []tensor.Tensor) *errs.Error {
	op, given := embeddingBag.Name, func(i int) bool { return args[i].Given() }
	switch {
	case !given(bagDweight) && !given(BagDsample):
		return errs.New(errs.InvalidProblem, op, "dweight or d_per_sample_weights", "given", "nothing", "")
	case d.Mode != "sum" && given(BagSampleWeights):
		return errs.New(errs.InvalidProblem, op, "per_sample_weights", "left out in mode "+d.Mode, "an operand", `only mode "sum" has weights for samples`)
	case d.Mode != "sum" && given(BagDsample):
		return errs.New(errs.InvalidProblem, op, "d_per_sample_weights", "left out in mode "+d.Mode, "an operand", `only mode "sum" has weights for samples`)
	case d.Mode != "max" && given(BagMaxIndices):
		return errs.New(errs.InvalidProblem, op, "max_indices", "left out in mode "+d.Mode, "an operand", "")
	case d.Mode == "max" && given(bagDweight) && !given(BagMaxIndices):
		return errs.New(errs.InvalidProblem, op, "max_indices", "given in mode max", "nothing", "the forward returns them")
	case given(BagDsample) && !given(bagWeight):
		return errs.New(errs.InvalidProblem, op, "weight", "given for d_per_sample_weights", "nothing", "")
	}
	return nil
}

// line is an operand of rank 1 as a slice: element k is at start + k step.
type stridedVec[I int32 | int64] struct {
	in          []I
	start, step int64
}

func stridedOf[I int32 | int64](t *tensor.Tensor) stridedVec[I] {
	n, step := t.Shape[0], t.Strides[0]
	switch {
	case n == 0:
		return stridedVec[I]{}
	case step < 0:
		return stridedVec[I]{cpu.Elements[I](t, (n-1)*step, n, -step), (n - 1) * -step, step}
	}
	return stridedVec[I]{cpu.Elements[I](t, 0, n, step), 0, step}
}

func (l stridedVec[I]) at(k int64) int64 { return int64(l.in[l.start+k*l.step]) }

// integers reads an operand of rank 1 of int32 or int64.
func integersOf(t *tensor.Tensor) func(k int64) int64 {
	if t.DType == tensor.Int32 {
		return stridedOf[int32](t).at
	}
	return stridedOf[int64](t).at
}

// checkValues refuses offsets out of order and indices that name no row. It reads memory of the host.
func (d EmbeddingBagBackward) checkValues(args []tensor.Tensor) *errs.Error {
	if b := badOffset(&args[bagOffsets], d.TotalIndices); b >= 0 {
		return d.refuseOffset(b, integersOf(&args[bagOffsets])(b))
	}
	if k, bad := firstOutside(&args[bagIndices], 0, d.NumEmbeddings); bad != nil {
		return ops.RefuseIndex(embeddingBag.Name, "indices", fmt.Sprint("position ", k), *bad, d.NumEmbeddings)
	}
	w := &args[BagMaxIndices]
	if vector, one := asVector(w); one {
		if _, bad := firstOutside(&vector, math.MinInt64, d.NumEmbeddings); bad == nil {
			return nil
		}
	}
	for b := range w.Shape[0] {
		row := rowOf(w, b)
		if k, bad := firstOutside(&row, math.MinInt64, d.NumEmbeddings); bad != nil && d.hasCountedPosition(args, b) {
			return d.refuseArgmax(b, k, *bad)
		}
	}
	return nil
}

// counts reports that a bag has a position that is not padding.
func (d EmbeddingBagBackward) hasCountedPosition(args []tensor.Tensor, bag int64) bool {
	offset, index, end := integersOf(&args[bagOffsets]), integersOf(&args[bagIndices]), d.TotalIndices
	if bag+1 < args[bagOffsets].Shape[0] {
		end = offset(bag + 1)
	}
	for k := offset(bag); k < end; k++ {
		if index(k) != d.Padding() {
			return true
		}
	}
	return false
}

// asLine is a matrix row by row as one line, where its elements are as far apart as its rows allow.
func asVector(t *tensor.Tensor) (tensor.Tensor, bool) {
	all := *t
	all.NDim, all.Shape[0], all.Strides[0] = 1, t.Shape[0]*t.Shape[1], t.Strides[1]
	return all, t.Given() && t.Strides[0] == t.Shape[1]*t.Strides[1]
}

// rowOf is a row of a matrix.
func rowOf(t *tensor.Tensor, k int64) tensor.Tensor {
	row := *t
	row.NDim, row.Shape[0], row.Strides[0] = 1, t.Shape[1], t.Strides[1]
	row.Data += uintptr(k * t.Strides[0] * t.DType.Size())
	return row
}

// badOffset is the first offset that is below the one before or above the total, or -1; the first of all is to be 0.
func badOffset(t *tensor.Tensor, total int64) int64 {
	if t.DType == tensor.Int32 {
		return outOfOrder(stridedOf[int32](t), t.Shape[0], total)
	}
	return outOfOrder(stridedOf[int64](t), t.Shape[0], total)
}

func outOfOrder[I int32 | int64](l stridedVec[I], n, total int64) int64 {
	before, most := int64(0), int64(0)
	for k := range n {
		if o := l.at(k); o < before || o > most {
			return k
		} else {
			before, most = o, total
		}
	}
	return -1
}

// firstOutside finds the first element that is not in [low, high).
func firstOutside(t *tensor.Tensor, low, high int64) (int64, *int64) {
	n, found := t.Shape[0], atomic.Int64{}
	found.Store(n)
	parallelFor(n, 1<<14, 1<<15, func(first, end int64) {
		at := int64(-1)
		if t.DType == tensor.Int32 {
			at = outside(stridedOf[int32](t), first, end, low, high)
		} else {
			at = outside(stridedOf[int64](t), first, end, low, high)
		}
		for old := found.Load(); at >= 0 && at < old && !found.CompareAndSwap(old, at); {
			old = found.Load()
		}
	})
	at := found.Load()
	if at == n {
		return 0, nil
	}
	v := integersOf(t)(at)
	return at, &v
}

func outside[I int32 | int64](l stridedVec[I], first, end, low, high int64) int64 {
	if l.step == 1 { // one comparison, without a look at where the line ends
		for k, v := range l.in[first:end] {
			if uint64(int64(v)-low) >= uint64(high-low) {
				return first + int64(k)
			}
		}
		return -1
	}
	for k := first; k < end; k++ {
		if v := l.at(k); v < low || v >= high {
			return k
		}
	}
	return -1
}

func (d EmbeddingBagBackward) refuseOffset(bag, value int64) *errs.Error {
	wanted := fmt.Sprintf("in order, from 0 to at most %d indices", d.TotalIndices)
	return errs.New(errs.InvalidProblem, embeddingBag.Name, "offsets", wanted, fmt.Sprintf("%d at bag %d", value, bag), "")
}

func (d EmbeddingBagBackward) refuseArgmax(bag, column, value int64) *errs.Error {
	return ops.RefuseIndex(embeddingBag.Name, "max_indices", fmt.Sprintf("[%d, %d]", bag, column), value, d.NumEmbeddings)
}
