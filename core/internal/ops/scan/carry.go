package scan

import (
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/scan/operand"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file describes the carries: the states by which a row that is cut into chunks is scanned
// chunk by chunk. A carry has some numbers for each row, in the last dimension.
//
// The carry of a scan, which every device understands, has the numbers that Kinds lists.
//
// The carry of a gradient is the map from the derivative by the carry that leaves a chunk to the
// one by the carry that enters it. Its numbers are those of the device that wrote them.

// carryOperand describes a carry: `size` numbers for each row. An input may be several carries, of
// adjacent chunks in scan order, which are combined.
func carryOperand(name string, isOut bool, shape []int64, dim int, size int64) ops.Operand {
	rows := make([]int64, 0, len(shape)+1)
	for d, extent := range shape {
		if d != dim {
			rows = append(rows, extent)
		}
	}
	one := append(rows, size)
	shapes := [][]int64{one}
	if !isOut && len(one) < tensor.MaxRank {
		shapes = append(shapes, append([]int64{ops.AnyExtent}, one...))
	}
	return ops.Operand{Name: name, Out: isOut, Optional: true, DTypes: []tensor.DType{tensor.Float64}, Shapes: shapes}
}

// checkForward refuses runs that compute nothing, and carries where the descriptor has none.
func (d *Scan) checkForward(op string, args []tensor.Tensor) *errs.Error {
	if err := checkCarriesAllowed(op, d.Carries, args, carryNames{{operand.ForwardCarryIn, "carry_in"}, {operand.ForwardCarryOut, "carry_out"}}); err != nil {
		return err
	}
	if y := args[operand.ForwardY].Given(); !y && (!args[operand.ForwardCarryOut].Given() || args[operand.ForwardIndices].Given()) {
		return errs.New(errs.InvalidProblem, op, "y", "given", "nothing", "")
	}
	return nil
}

// checkBackward refuses runs that compute nothing, and carries that the gradient does not have.
func (d *ScanBackward) checkBackward(op string, args []tensor.Tensor) *errs.Error {
	names := carryNames{{operand.CarryIn, "carry_in"}, {operand.DCarryOut, "dcarry_out"}, {operand.DCarryIn, "dcarry_in"}}
	if err := checkCarriesAllowed(op, d.Carries, args, names); err != nil {
		return err
	}
	if !args[operand.Dx].Given() && !args[operand.DCarryIn].Given() {
		return errs.New(errs.InvalidProblem, op, "dx", "given", "nothing", "")
	}
	if args[operand.CarryIn].Given() && ByName[d.Kind].IsOwnGradient() {
		return errs.New(errs.InvalidProblem, op, "carry_in", "left out", "an operand", "the gradient needs dy alone")
	}
	if d.Carries && args[operand.Indices].Given() {
		return errs.New(errs.InvalidProblem, op, "indices", "left out with carries", "an operand", "give x in place of the indices")
	}
	return nil
}

// carryNames are carries of a run, by their operands.
type carryNames []struct {
	number int
	name   string
}

// checkCarriesAllowed refuses carries unless the descriptor has them.
func checkCarriesAllowed(op string, isAllowed bool, args []tensor.Tensor, names carryNames) *errs.Error {
	for _, carry := range names {
		if args[carry.number].Given() && !isAllowed {
			return errs.New(errs.InvalidProblem, op, carry.name, "left out", "an operand", "select a plan whose descriptor has carries=True")
		}
	}
	return nil
}
