package scan

import (
	"fmt"

	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/scan/host"
	"github.com/sternway/sternway/core/internal/tensor"
)

// sequences are the sequences that are packed along the scanned dimension of a problem. The operand
// cu_seqlens has their bounds: sequence k is the positions cu_seqlens[k] to cu_seqlens[k+1] - 1 of
// every row.
type sequences struct {
	op     string
	count  *int64 // nil: rows are one sequence each
	length int64  // positions of a row
	isCut  bool   // rows are chunks: bounds may be negative and exceed the length
}

// checkCount refuses a number of sequences that no operand can have.
func (s *sequences) checkCount(rank int) error {
	switch {
	case s.count == nil:
		return nil
	case rank == 0:
		return errs.New(errs.InvalidProblem, s.op, "num_sequences", "left out for a tensor of rank 0", fmt.Sprint(*s.count), "")
	}
	return ops.CheckShape(s.op, "num_sequences", []int64{*s.count})
}

// operand describes cu_seqlens.
func (s *sequences) operand() ops.Operand {
	count := int64(0)
	if s.count != nil {
		count = *s.count
	}
	return ops.Operand{Name: "cu_seqlens", Optional: true, DTypes: []tensor.DType{tensor.Int32, tensor.Int64}, Shapes: [][]int64{{count + 1}}}
}

// checkGiven refuses a run whose cu_seqlens is given although the descriptor has no sequences, or
// the other way round.
func (s *sequences) checkGiven(seqlens *tensor.Tensor) *errs.Error {
	switch {
	case s.count == nil && seqlens.Given():
		return errs.New(errs.InvalidProblem, s.op, "cu_seqlens", "left out", "an operand", "select a plan whose descriptor has num_sequences")
	case s.count != nil && !seqlens.Given():
		return errs.New(errs.InvalidProblem, s.op, "cu_seqlens", "given", "nothing", "the descriptor has num_sequences")
	}
	return nil
}

// checkBounds refuses bounds that do not rise from 0 to the length of a row; of a chunk, from at
// most 0 to at least its length. They are in host memory.
func (s *sequences) checkBounds(seqlens *tensor.Tensor) *errs.Error {
	if !seqlens.Given() {
		return nil
	}
	bounds := host.BoundsOf(seqlens)
	k := bounds.FirstWrong(s.length, s.isCut)
	if k < 0 {
		return nil
	}
	wanted := fmt.Sprintf("bounds that rise from 0 to %d, the extent along dim", s.length)
	if s.isCut {
		wanted = fmt.Sprintf("bounds that rise from at most 0 to at least %d, the extent along dim", s.length)
	}
	return errs.New(errs.InvalidProblem, s.op, "cu_seqlens", wanted, fmt.Sprintf("%d at position %d", bounds.At(k), k), "")
}
