package scan

import (
	"fmt"
	"slices"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// sequences are the sequences that are packed along the scanned dimension of a problem. The operand
// cu_seqlens has their bounds: sequence k is the positions cu_seqlens[k] to cu_seqlens[k+1] - 1 of
// every row.
type sequences struct {
	op     string
	count  *int64 // nil: rows are one sequence each
	length int64  // positions of a row
	isCut  bool   // rows are chunks: bounds may lie before and behind them
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

// checkBounds refuses bounds that do not rise from 0 to the length of a row, or from before a chunk
// to behind it. They are in host memory.
func (s *sequences) checkBounds(seqlens *tensor.Tensor) *errs.Error {
	if !seqlens.Given() {
		return nil
	}
	bounds := boundsOf(seqlens)
	wanted := fmt.Sprintf("bounds that rise from 0 to %d, the extent along dim", s.length)
	if s.isCut {
		wanted = fmt.Sprintf("bounds that rise from at most 0 to at least %d, the extent along dim", s.length)
	}
	wrong, last := -1, len(bounds)-1
	switch {
	case bounds[0] > 0 || bounds[0] < 0 && !s.isCut:
		wrong = 0
	case bounds[last] < s.length:
		wrong = last
	}
	for k := 1; k <= last && wrong != 0; k++ {
		if bounds[k] < bounds[k-1] || bounds[k] > s.length && !s.isCut {
			wrong = k
			break
		}
	}
	if wrong < 0 {
		return nil
	}
	return errs.New(errs.InvalidProblem, s.op, "cu_seqlens", wanted, fmt.Sprintf("%d at position %d", bounds[wrong], wrong), "")
}

// boundsOf are the numbers of cu_seqlens, in host memory; nil if it is left out.
func boundsOf(seqlens *tensor.Tensor) []int64 {
	if !seqlens.Given() {
		return nil
	}
	bounds, stride := make([]int64, seqlens.Shape[0]), seqlens.Strides[0]
	switch {
	case len(bounds) == 0:
	case seqlens.DType == tensor.Int64 && stride == 1:
		bounds = slices.Clone(cpu.Elements[int64](seqlens, 0, int64(len(bounds)), 1))
	default:
		for k := range bounds {
			if seqlens.DType == tensor.Int32 {
				bounds[k] = int64(cpu.Elements[int32](seqlens, int64(k)*stride, 1, 1)[0])
			} else {
				bounds[k] = cpu.Elements[int64](seqlens, int64(k)*stride, 1, 1)[0]
			}
		}
	}
	return bounds
}
