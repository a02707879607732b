package embedding

import (
	"fmt"
	"math"

	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file has the checks of the backward of embedding bags: of the descriptor's options, of which
// operands are given, and of the integers in them.

func (d EmbeddingBagBackward) checkOptions() error {
	op := embeddingBag.Name
	if err := ops.FirstError(checkBagMode(op, d.Mode), d.checkLearning(op, d.DType)); err != nil {
		return err
	}
	if d.Mode == "max" && d.ScaleGradByFreq {
		return errs.New(errs.Unsupported, op, "scale_grad_by_freq", "false in mode max", "true", "")
	}
	return ops.CheckPadding(op, d.PaddingIdx, d.NumEmbeddings)
}

func (d EmbeddingBagBackward) checkPresence(op string, args []tensor.Tensor) *errs.Error {
	given := func(i int) bool { return args[i].Given() }
	writesRows := d.learns() || given(bagDweight)
	switch {
	case !writesRows && !given(BagDsample):
		return errs.New(errs.InvalidProblem, op, "dweight or d_per_sample_weights", "given", "nothing", "")
	case d.Mode != "sum" && given(BagSampleWeights):
		return errs.New(errs.InvalidProblem, op, "per_sample_weights", "left out in mode "+d.Mode, "an operand", `only mode "sum" has weights for samples`)
	case d.Mode != "sum" && given(BagDsample):
		return errs.New(errs.InvalidProblem, op, "d_per_sample_weights", "left out in mode "+d.Mode, "an operand", `only mode "sum" has weights for samples`)
	case d.Mode != "max" && given(BagMaxIndices):
		return errs.New(errs.InvalidProblem, op, "max_indices", "left out in mode "+d.Mode, "an operand", "")
	case d.Mode == "max" && writesRows && !given(BagMaxIndices):
		return errs.New(errs.InvalidProblem, op, "max_indices", "given in mode max", "nothing", "the forward returns them")
	case given(BagDsample) && !given(bagWeight):
		return errs.New(errs.InvalidProblem, op, "weight", "given for d_per_sample_weights", "nothing", "")
	}
	return nil
}

// checkValues refuses offsets out of order and indices out of range. The operands are in host
// memory.
func (d EmbeddingBagBackward) checkValues(args []tensor.Tensor) *errs.Error {
	if b := badOffset(&args[bagOffsets], d.TotalIndices); b >= 0 {
		return d.offsetError(b, integersOf(&args[bagOffsets])(b))
	}
	if k, invalid := firstOutside(&args[bagIndices], 0, d.NumEmbeddings); invalid != nil {
		return ops.IndexOutOfRange(embeddingBag.Name, "indices", fmt.Sprint("position ", k), *invalid, d.NumEmbeddings)
	}
	w := &args[BagMaxIndices]
	if vector, one := asVector(w); one {
		if _, invalid := firstOutside(&vector, math.MinInt64, d.NumEmbeddings); invalid == nil {
			return nil
		}
	}
	for b := range w.Shape[0] {
		row := rowOf(w, b)
		if k, invalid := firstOutside(&row, math.MinInt64, d.NumEmbeddings); invalid != nil && d.hasCountedPosition(args, b) {
			return d.argmaxError(b, k, *invalid)
		}
	}
	return nil
}

// hasCountedPosition reports whether a bag has a position that is not padding.
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

// badOffset is the index of the first invalid offset, or -1. The first offset must be 0, and each
// further one must lie between its predecessor and the total.
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

func (d EmbeddingBagBackward) offsetError(bag, value int64) *errs.Error {
	wanted := fmt.Sprintf("in order, from 0 to at most %d indices", d.TotalIndices)
	return errs.New(errs.InvalidProblem, embeddingBag.Name, "offsets", wanted, fmt.Sprintf("%d at bag %d", value, bag), "")
}

func (d EmbeddingBagBackward) argmaxError(bag, column, value int64) *errs.Error {
	return ops.IndexOutOfRange(embeddingBag.Name, "max_indices", fmt.Sprintf("[%d, %d]", bag, column), value, d.NumEmbeddings)
}
