package embedding

import (
	"fmt"
	"slices"

	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file has the optimizers that update the rows of a table in the backward, in place of storing
// a gradient (fused optimizers).

// Learning is the part of a descriptor that names an optimizer. The backward then updates weight,
// the table itself, and has no dweight: each row of a counted index is updated once, by the rule of
// torch.optim on the sum of its gradients, and no other row is touched. The operand `options` has
// the numbers of Options, and the states have the accumulator of the table's dtype:
//
//	sgd:              w -= lr g
//	adagrad:          sum += g^2,          w -= lr g / (sqrt(sum) + eps)
//	rowwise_adagrad:  sum += mean of g^2,  w -= lr g / (sqrt(sum) + eps), one sum for each row
//	adam:             exp_avg += (1 - beta1) (g - exp_avg),
//	                  exp_avg_sq += (1 - beta2) (g^2 - exp_avg_sq),
//	                  w -= lr sqrt(1 - beta2^t) / (1 - beta1^t) exp_avg / (sqrt(exp_avg_sq) + eps)
//
// g is the sum divided by grad_scale, plus weight_decay w. t is the number of runs, this one
// included. StochasticRounding rounds each element of a 16-bit table to one of its two neighbors at
// random, so that the mean is the exact number.
type Learning struct {
	Optimizer          string `json:"optimizer"` // empty: the gradient is stored
	StochasticRounding bool   `json:"stochastic_rounding"`
}

// Optimizers are the names of the optimizers.
var Optimizers = []string{"sgd", "adagrad", "rowwise_adagrad", "adam"}

// Options are the names of the numbers in the operand `options`, float64 in memory of the plan's
// device, in order. A run adds 1 to step and to draw, and forms step_size from lr, the betas and
// step.
var Options = []string{"lr", "eps", "weight_decay", "beta1", "beta2", "grad_scale", "step", "step_size", "seed", "draw"}

func (l *Learning) learns() bool { return l.Optimizer != "" }

// isRowwise reports whether the state has one number for each row.
func (l *Learning) isRowwise() bool { return l.Optimizer == "rowwise_adagrad" }

// checkLearning refuses an unknown optimizer, and rounding that a table does not need.
func (l *Learning) checkLearning(op string, element tensor.DType) error {
	switch {
	case l.learns() && !slices.Contains(Optimizers, l.Optimizer):
		return errs.New(errs.Unsupported, op, "optimizer", errs.OrList(Optimizers), fmt.Sprintf("%q", errs.Clip(l.Optimizer)), "")
	case l.StochasticRounding && !l.learns():
		return errs.New(errs.InvalidProblem, op, "stochastic_rounding", "false without an optimizer", "true", "")
	case l.StochasticRounding && !element.IsNarrow():
		return errs.New(errs.Unsupported, op, "stochastic_rounding", "false for a table of "+element.String(), "true", "only 16-bit tables are rounded")
	}
	return nil
}

// tableOperands are the table and the numbers of its optimizer, in place of weight and dweight.
func (l *Learning) tableOperands(shape []int64, element tensor.DType) []ops.Operand {
	return []ops.Operand{
		{Name: "weight", Out: true, Contiguous: true, DTypes: []tensor.DType{element}, Like: "like dy", Shapes: [][]int64{shape}},
		{Name: "options", Out: true, Contiguous: true, DTypes: []tensor.DType{tensor.Float64}, Shapes: [][]int64{{int64(len(Options))}}},
	}
}

// StateNames are the states of each optimizer, by torch.optim's names.
var StateNames = map[string][]string{"adagrad": {"sum"}, "rowwise_adagrad": {"sum"}, "adam": {"exp_avg", "exp_avg_sq"}}

// stateOperands are the states of the optimizer.
func (l *Learning) stateOperands(shape []int64, element tensor.DType) (list []ops.Operand) {
	if l.isRowwise() {
		shape = shape[:1]
	}
	for _, name := range StateNames[l.Optimizer] {
		list = append(list, ops.Operand{Name: name, Out: true, Contiguous: true, DTypes: []tensor.DType{element.Accumulator()}, Shapes: [][]int64{shape}})
	}
	return list
}
