package embedding

import (
	"fmt"
	"math"
	"slices"
	"unsafe"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file is the family of the backward of embedding bags of many tables. It has the programs and
// kernels of one table.

// EmbeddingBagsBackward is the gradient of EmbeddingBags: of each table, as of
// EmbeddingBagBackward. One sort has the rows of all tables. With an optimizer the rows that are
// used are updated (see Learning).
//
// Operands: dy [NumBags, NumColumns], indices, offsets and tables as of EmbeddingBags,
// per_sample_weights? [TotalIndices] (sum; of DType or float32), max_indices? [NumBags, NumColumns]
// (max; as the forward saved it), weight? [NumElements] -> dweight? [NumElements],
// d_per_sample_weights? [TotalIndices] (sum; of DType or float32; needs weight). The gradient of a
// gap between two tables is 0. With an optimizer, weight and options are outputs in the places of
// weight and dweight, and states follow, of NumElements numbers, or of NumRows if the state has one
// for each row.
type EmbeddingBagsBackward struct {
	EmbeddingBags
	Learning
}

var bagsBackward = ops.Register(&ops.Family{
	Name: "embedding_bags_backward", Category: embeddingBag.Category, Image: updateImage,
	Kinds:    []ops.KindRow{{Kernels: []string{KernelSorted}}},
	Required: bagsForward.Required,
	Choices:  append(slices.Clone(bagForwardChoices), ops.Words("optimizer", Optimizers...)),
	Decode:   ops.DecodeAs[EmbeddingBagsBackward],
})

// Family is "embedding_bags_backward".
func (d EmbeddingBagsBackward) Family() string { return bagsBackward.Name }

// Problem checks the descriptor. It implements ops.Descriptor.
func (d EmbeddingBagsBackward) Problem() (*ops.Problem, error) {
	op := bagsBackward.Name
	if err := ops.FirstError(d.check(op), d.checkLearning(op, d.DType)); err != nil {
		return nil, err
	}
	said, element, weight := "as the descriptor says", []tensor.DType{d.DType}, []int64{d.NumElements}
	dy, flat := []int64{d.NumBags, d.NumColumns}, []int64{d.TotalIndices}
	sample, argmax := sampleOperands(d.DType, d.IndexDType, "like dy", flat, dy)
	dsample := sample
	dsample.Name, dsample.Out = "d_per_sample_weights", true
	states := weight
	if d.isRowwise() {
		states = []int64{d.NumRows}
	}
	table := []ops.Operand{
		{Name: "weight", Optional: true, Contiguous: true, DTypes: element, Like: "like dy", Shapes: [][]int64{weight}},
		{Name: "dweight", Out: true, Optional: true, Contiguous: true, DTypes: element, Like: "like dy", Shapes: [][]int64{weight}},
	}
	if d.learns() {
		table = d.tableOperands(weight, d.DType)
	}
	problem := &ops.Problem{
		Family: bagsBackward, Element: d.DType, Aux: d.IndexDType.String(), Traffic: d.traffic(),
		Operands: slices.Concat(
			[]ops.Operand{{Name: "dy", Contiguous: true, DTypes: element, Like: said, Shapes: [][]int64{dy}}},
			d.positionOperands(), []ops.Operand{sample, argmax}, table, []ops.Operand{dsample}, d.stateOperands(states, d.DType)),
		Compile: d.compile,
	}
	places := operandsOf(problem)
	problem.CheckPresence = func(args []tensor.Tensor) *errs.Error { return d.bags().checkPresence(op, places.of(args)) }
	problem.CheckValues = func(args []tensor.Tensor) *errs.Error { return d.checkValues(op, places.of(args)) }
	return problem, nil
}

// bags is the problem as one of the bags of all tables in one table of all rows.
func (d EmbeddingBagsBackward) bags() EmbeddingBagBackward {
	return EmbeddingBagBackward{
		NumEmbeddings: d.NumRows, EmbeddingDim: d.EmbeddingDim, NumBags: d.NumTables * d.NumBags, TotalIndices: d.TotalIndices,
		DType: d.DType, Mode: d.Mode, IndexDType: d.IndexDType, OffsetDType: d.OffsetDType, IncludeLastOffset: true,
		Learning: d.Learning,
	}
}

// traffic is that of one table whose rows have the mean width.
func (d EmbeddingBagsBackward) traffic() int64 {
	bags := d.bags()
	bags.EmbeddingDim = d.NumColumns / max(d.NumTables, 1)
	return bags.traffic()
}

// checkValues refuses tables, offsets, indices and max_indices that do not fit each other.
func (d EmbeddingBagsBackward) checkValues(op string, args []tensor.Tensor) *errs.Error {
	if err := d.checkPositions(op, &args[bagIndices], &args[bagOffsets], &args[bagTables]); err != nil {
		return err
	}
	maxIndices := &args[BagMaxIndices]
	if !maxIndices.Given() {
		return nil
	}
	tables, at := tableRowsOf(&args[bagTables]), integersOf(&args[bagOffsets])
	for t := range d.NumTables {
		part, rows := columnsOf(maxIndices, tables[t][tableColumn], tables[t+1][tableColumn]), tables[t+1][tableRow]-tables[t][tableRow]
		for b := range d.NumBags {
			row := rowOf(&part, b)
			if k, invalid := firstOutside(&row, math.MinInt64, rows); invalid != nil && at(t*d.NumBags+b) < at(t*d.NumBags+b+1) {
				return ops.IndexOutOfRange(op, "max_indices", fmt.Sprintf("[%d, %d]", b, tables[t][tableColumn]+k), *invalid, rows)
			}
		}
	}
	return nil
}

func (d EmbeddingBagsBackward) compile(problem *ops.Problem, numSMs int, cuda bool, preference ops.Preference) (ops.Program, error) {
	bags := d.bags()
	if cuda {
		if err := d.checkDeviceCounts(problem.Op()); err != nil {
			return nil, err
		}
		if n := d.NumBags * d.NumColumns; n > math.MaxUint32 {
			return nil, errs.New(errs.Unsupported, problem.Op(), "num_bags * num_columns", "at most 2^32 - 1 on a GPU", fmt.Sprint(n), "split the tables")
		}
	}
	many := d.EmbeddingBags
	return bags.program(problem, &many, numSMs, cuda, preference)
}

// columnsOf are the columns first..end-1 of a matrix.
func columnsOf(t *tensor.Tensor, first, end int64) tensor.Tensor {
	part := *t
	if t.Given() {
		part.Data, part.Shape[1] = elementAt(t, 0, first), end-first
	}
	return part
}

// elementsOf are elements of a vector from index first on, as an array of a shape.
func elementsOf(t *tensor.Tensor, first int64, shape ...int64) tensor.Tensor {
	part := *t
	if t.Given() {
		part.Data += uintptr(first * t.Strides[0] * t.DType.Size())
		part.NDim = int32(len(shape))
		step := t.Strides[0]
		for k := len(shape) - 1; k >= 0; k-- {
			part.Shape[k], part.Strides[k] = shape[k], step
			step *= shape[k]
		}
	}
	return part
}

// hostTables runs each table on the CPU.
func (p *BagProgram) hostTables(args []tensor.Tensor) {
	tables, at := tableRowsOf(&args[bagTables]), integersOf(&args[bagOffsets])
	offsets := make([]int64, p.many.NumBags+1)
	for t := range p.many.NumTables {
		own, next := tables[t], tables[t+1]
		rows, width := next[tableRow]-own[tableRow], next[tableColumn]-own[tableColumn]
		first := at(t * p.many.NumBags)
		for b := range offsets {
			offsets[b] = at(t*p.many.NumBags+int64(b)) - first
		}
		total := offsets[p.many.NumBags]
		sub := *p
		sub.many, sub.firstElement = nil, own[tableElement]
		sub.NumEmbeddings, sub.EmbeddingDim, sub.NumBags, sub.TotalIndices = rows, width, p.many.NumBags, total
		some := slices.Clone(args)
		for _, i := range []int{bagDy, BagMaxIndices} {
			some[i] = columnsOf(&args[i], own[tableColumn], next[tableColumn])
		}
		for _, i := range []int{bagIndices, BagSampleWeights, BagDsample} {
			some[i] = elementsOf(&args[i], first, total)
		}
		for _, i := range []int{bagWeight, bagDweight, bagState, bagState2} {
			some[i] = elementsOf(&args[i], own[tableElement], rows, width)
		}
		if p.isRowwise() {
			some[bagState] = elementsOf(&args[bagState], own[tableRow], rows)
		}
		some[bagOffsets] = tensor.Tensor{
			Data: uintptr(unsafe.Pointer(unsafe.SliceData(offsets))), DType: tensor.Int64, Device: tensor.CPU, NDim: 1, Present: 1,
			Pin: unsafe.Pointer(unsafe.SliceData(offsets)), Shape: [tensor.MaxRank]int64{p.many.NumBags + 1}, Strides: [tensor.MaxRank]int64{1},
		}
		sub.runHost(some)
		if !p.learns() {
			clearElements(&args[bagDweight], own[tableElement]+rows*width, next[tableElement])
		}
	}
	if !p.learns() { // gaps before the first table and after the last one
		clearElements(&args[bagDweight], 0, tables[0][tableElement])
		clearElements(&args[bagDweight], tables[p.many.NumTables][tableElement], p.many.NumElements)
	}
}

// clearElements zero-fills elements first..end-1 of a vector, if it is given.
func clearElements(t *tensor.Tensor, first, end int64) {
	if t.Given() {
		gap := elementsOf(t, first, end-first)
		clear(cpu.Elements[byte](&gap, 0, gap.Shape[0]*gap.DType.Size(), 1))
	}
}
