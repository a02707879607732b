package coretest

import (
	"math/rand/v2"
	"testing"

	"github.com/sternway/sternway/core/internal/ops"
)

// operation is what the tests of all families know of an operation of the engine of
// ops/elementwise. Each has a file of its own in this package, which adds it.
type operation[D ops.Descriptor] struct {
	samples []D // each kernel is the right one for some of them
	// values draws the elements of floating operands by name; usualValue has the others.
	values map[string]draw
	// define is the oracle of a problem; isFloating, whether operand i is given and floating.
	define func(d D, isFloating func(i int) bool) *definition
	// kernels are the problems that launches compute, by the name of a KernelSet. nil: the kernels
	// are named like the family, and no scalar matters.
	kernels map[string]problemOf[D]
	// differences are the problems in which an oracle is compared with finite differences: those of
	// a gradient, where its forward has no kink.
	differences []difference
}

// draw returns a random number.
type draw = func(*rand.Rand) float64

// problemOf returns the problem that a launch with some scalars computes, up to its shapes.
type problemOf[D ops.Descriptor] = func(t testing.TB, scalar [4]float64) D

// difference is a problem of TestOraclesAgainstFiniteDifferences.
type difference struct {
	name       string
	definition *definition
	shapes     [4][]int64 // of the inputs; nil: absent
	values     [4]draw
}

// known is an operation whose type of descriptor is erased.
type known struct {
	values      map[string]draw
	define      func(d ops.Descriptor, isFloating func(i int) bool) *definition
	differences []difference
}

// The operations by the names of their families, their samples, and the problems of launches by the
// names of kernel sets.
var (
	operations     = map[string]*known{}
	elementSamples []ops.Descriptor
	launches       = map[string]problemOf[ops.Descriptor]{}
)

// add makes an operation known to the tests.
func add[D ops.Descriptor](o operation[D]) {
	var descriptor D
	operations[descriptor.Family()] = &known{
		values: o.values, differences: o.differences,
		define: func(d ops.Descriptor, isFloating func(i int) bool) *definition { return o.define(d.(D), isFloating) },
	}
	for _, sample := range o.samples {
		elementSamples = append(elementSamples, sample)
	}
	if o.kernels == nil {
		launches[descriptor.Family()] = func(testing.TB, [4]float64) ops.Descriptor { return descriptor }
	}
	for name, problem := range o.kernels {
		launches[name] = func(t testing.TB, scalar [4]float64) ops.Descriptor { return problem(t, scalar) }
	}
}
