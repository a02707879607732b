package rope

import (
	"fmt"
	"math"
	"slices"

	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// maxHeadDim bounds the memory for the frequencies of a plan.
const maxHeadDim = 1 << 20

// check refuses a descriptor that contradicts itself, or is too large.
func (d *problem) check() error {
	heads := d.NumHeads
	invalid := func(field, wanted string, got any) error {
		return errs.New(errs.InvalidProblem, d.family.Name, field, wanted, fmt.Sprint(got), "")
	}
	for _, extent := range []struct {
		field string
		value int64
	}{{"batch_size", d.BatchSize}, {"num_heads", d.NumHeads}, {"seq_len", d.SeqLen}} {
		if extent.value < 0 {
			return invalid(extent.field, "not negative", extent.value)
		}
	}
	if d.NumKeyHeads != nil {
		if *d.NumKeyHeads < 0 {
			return invalid("num_key_heads", "not negative", *d.NumKeyHeads)
		}
		heads = max(heads, *d.NumKeyHeads)
	}
	base := float64(*d.Base)
	switch {
	case d.HeadDim < 0 || d.HeadDim%2 != 0:
		return invalid("head_dim", "even and not negative", d.HeadDim)
	case d.HeadDim > maxHeadDim:
		return errs.New(errs.Unsupported, d.family.Name, "head_dim", fmt.Sprintf("at most %d", maxHeadDim), fmt.Sprint(d.HeadDim), "")
	case *d.RotaryDim < 0 || *d.RotaryDim%2 != 0 || *d.RotaryDim > d.HeadDim:
		return invalid("rotary_dim", fmt.Sprintf("even and between 0 and head_dim %d", d.HeadDim), *d.RotaryDim)
	case d.RotaryStart < 0 || d.RotaryStart > d.HeadDim-*d.RotaryDim:
		return invalid("rotary_start", fmt.Sprintf("between 0 and %d, so that the rotated part ends inside head_dim", d.HeadDim-*d.RotaryDim), d.RotaryStart)
	case !(base > 0) || math.IsInf(base, 1):
		return invalid("base", "positive and finite", base)
	case d.Layout == "thd" && d.BatchSize != 1:
		return invalid("batch_size", "1 in the layout thd", d.BatchSize)
	}
	return ops.FirstError(
		d.checkWord("pairing", d.Pairing, pairings...),
		d.checkWord("angle", d.Angle, angles...),
		d.checkWord("layout", d.Layout, layouts...),
		ops.CheckElement(d.family.Name, "dtype", d.DType, tensor.Floats),
		ops.CheckShape(d.family.Name, "shape", d.Shape(heads)),
	)
}

// checkWord refuses an unknown word.
func (d *problem) checkWord(field, word string, known ...string) error {
	if slices.Contains(known, word) {
		return nil
	}
	return errs.New(errs.Unsupported, d.family.Name, field, errs.OrList(known), fmt.Sprintf("%q", errs.Clip(word)), "")
}

// checkPresence refuses one table without the other, tables of different shapes, and tables that
// are too short for the default positions.
func (d *problem) checkPresence(args []tensor.Tensor) *errs.Error {
	positions, cos, sin := &args[Positions], &args[Cos], &args[Sin]
	switch {
	case cos.Given() && !sin.Given():
		return errs.New(errs.InvalidProblem, d.family.Name, "sin", "given beside cos", "nothing", "")
	case sin.Given() && !cos.Given():
		return errs.New(errs.InvalidProblem, d.family.Name, "cos", "given beside sin", "nothing", "")
	case !cos.Given() || cos.NDim < 2 || cos.NDim > 3:
		return nil // a wrong rank is refused with the shape
	case cos.NDim != sin.NDim || cos.Shape != sin.Shape:
		return errs.New(errs.InvalidProblem, d.family.Name, "sin", "of the shape of cos", "another one", "")
	}
	if rows := cos.Shape[cos.NDim-2]; !positions.Given() && rows < d.SeqLen {
		return errs.New(errs.InvalidProblem, d.family.Name, "cos", fmt.Sprintf("a table of at least seq_len %d rows where no positions are given", d.SeqLen), fmt.Sprint(rows), "")
	}
	return nil
}

// checkValues refuses positions outside of the tables.
func (d *problem) checkValues(args []tensor.Tensor) *errs.Error {
	if !args[Cos].Given() || !args[Positions].Given() || args[Positions].Empty() {
		return nil
	}
	cos := &args[Cos]
	rows, at := cos.Shape[cos.NDim-2], positionsOf(&args[Positions])
	for b := range max(1, at.batches) {
		for s := range d.SeqLen {
			if row := at.position(b, s); row < 0 || row >= rows {
				place := fmt.Sprintf("positions[%d]", s)
				if args[Positions].NDim == 2 {
					place = fmt.Sprintf("positions[%d, %d]", b, s)
				}
				return errs.New(errs.InvalidProblem, d.family.Name, "positions", fmt.Sprintf("rows of the tables, from 0 to %d", rows-1), fmt.Sprintf("%s = %d", place, row), "")
			}
		}
	}
	return nil
}
