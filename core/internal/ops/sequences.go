package ops

import (
	"fmt"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/tensor"
)

// Sequences are the sequences that are packed along the scanned dimension of a problem. The operand
// cu_seqlens has their bounds: sequence k is the positions cu_seqlens[k] to cu_seqlens[k+1] - 1 of
// every row.
type Sequences struct {
	Op     string
	Count  *int64 // nil: rows are one sequence each
	Length int64  // positions of a row
	Extent string // the name of the length in messages: "the extent along dim"
	IsCut  bool   // rows are chunks: bounds may be negative and exceed the length
}

// CheckCount refuses a number of sequences that no operand can have.
func (s *Sequences) CheckCount(rank int) error {
	switch {
	case s.Count == nil:
		return nil
	case rank == 0:
		return errs.New(errs.InvalidProblem, s.Op, "num_sequences", "left out for a tensor of rank 0", fmt.Sprint(*s.Count), "")
	}
	return CheckShape(s.Op, "num_sequences", []int64{*s.Count})
}

// Operand describes cu_seqlens.
func (s *Sequences) Operand() Operand {
	count := int64(0)
	if s.Count != nil {
		count = *s.Count
	}
	return Operand{Name: "cu_seqlens", Optional: true, DTypes: []tensor.DType{tensor.Int32, tensor.Int64}, Shapes: [][]int64{{count + 1}}}
}

// CheckGiven refuses a run whose cu_seqlens is given although the descriptor has no sequences, or
// the other way round.
func (s *Sequences) CheckGiven(seqlens *tensor.Tensor) *errs.Error {
	switch {
	case s.Count == nil && seqlens.Given():
		return errs.New(errs.InvalidProblem, s.Op, "cu_seqlens", "left out", "an operand", "select a plan whose descriptor has num_sequences")
	case s.Count != nil && !seqlens.Given():
		return errs.New(errs.InvalidProblem, s.Op, "cu_seqlens", "given", "nothing", "the descriptor has num_sequences")
	}
	return nil
}

// CheckBounds refuses bounds that do not rise from 0 to the length of a row; of a chunk, from at
// most 0 to at least its length. They are in host memory.
func (s *Sequences) CheckBounds(seqlens *tensor.Tensor) *errs.Error {
	if !seqlens.Given() {
		return nil
	}
	bounds := cpu.BoundsOf(seqlens)
	k := bounds.FirstWrong(s.Length, s.IsCut)
	if k < 0 {
		return nil
	}
	wanted := fmt.Sprintf("bounds that rise from 0 to %d, %s", s.Length, s.Extent)
	if s.IsCut {
		wanted = fmt.Sprintf("bounds that rise from at most 0 to at least %d, %s", s.Length, s.Extent)
	}
	return errs.New(errs.InvalidProblem, s.Op, "cu_seqlens", wanted, fmt.Sprintf("%d at position %d", bounds.At(k), k), "")
}
