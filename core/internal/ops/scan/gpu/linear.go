package gpu

// Runs of linear recurrences: which kind computes them, and where factors and terms are.

import (
	"math"

	"github.com/sternway/sternway/core/internal/ops/scan/operand"
	"github.com/sternway/sternway/core/internal/tensor"
)

// linearRun is what a run of a linear recurrence has beside that of other scans.
type linearRun struct {
	noResult  bool            // of a gradient: db is left out
	hasFactor bool            // rows have one factor each, which kernels read in place of a
	factor    stridedOperands // the factor, in the role of a state that enters
	sums      []sumOfRun
}

// factorNumber is the number of a in the arguments of a run.
func (s *Scan) factorNumber() int {
	if s.IsForward {
		return operand.LinearA
	}
	return operand.LinearBackwardA
}

// chooseSpecial takes the special kind of the problem, if the run needs it or is faster with it:
// for one factor in a row of a forward, and for a number of 32 bits or terms beside 16 bits.
func (r *run) chooseSpecial(numbers *[numRoles]int) {
	special, number := &r.Special, r.factorNumber()
	if special.Kind == nil || r.Plain.Rows == 0 || r.Plain.Length == 0 {
		return
	}
	a := &r.args[number]
	isWide := a.DType.Size() > special.ElementSize
	if special.Kind.hasOneFactor {
		isAsked := special.Kernel == r.Plain.Kernel // the kind has the kernel that the caller asks for
		r.hasFactor = isWide || isAsked && r.hasOneFactor(a)
	} else {
		r.hasFactor = isWide
	}
	if !r.hasFactor && (!special.Kind.hasWide || len(r.sums) == 0) {
		return
	}
	r.problem, r.firstKernel = *special, len(r.Plain.Kind.Kernels())
	if !r.hasFactor {
		return
	}
	only := noNumbers()
	if only[result], only[suffixIn] = numbers[result], number; special.Kind.hasOneFactor {
		numbers[saved] = -1
	}
	r.factor = stridedOf(r.Shape, r.Dim, only, r.args, true)
}

// hasOneFactor reports whether a is one number along each row, and a kernel may find it by the row.
func (r *run) hasOneFactor(a *tensor.Tensor) bool {
	return len(r.Shape) > 0 && a.ElementStrides()[r.Dim] == 0 && r.Plain.Rows <= math.MaxUint32
}

// needsFactors reports whether a kernel has several rows in a warp, whose factors differ.
func (r *run) needsFactors(c *Config) bool {
	if !r.hasFactor || c.RowsPerWarp == 0 || !r.problem.Kind.hasOneFactor {
		return false
	}
	for _, stride := range r.factor.stride[suffixIn][:r.factor.dims] {
		if stride != 0 {
			return true
		}
	}
	return false
}

// usePlain takes the kind that reads a factor for each element.
func (r *run) usePlain(numbers *[numRoles]int) {
	r.problem, r.firstKernel, r.hasFactor = r.Plain, 0, false
	numbers[saved] = r.factorNumber()
}

// linearFlags are the flags of factors and results.
func (r *run) linearFlags() int64 {
	flags := flagIf(r.noResult, FlagNoResult)
	if r.hasFactor {
		flags |= FlagOneFactor | flagIf(r.args[r.factorNumber()].DType.Size() > r.problem.ElementSize, FlagFactorWide)
	}
	if r.problem.Kind.hasWide {
		flags |= flagIf(r.termsOf(operand.LinearDB) != nil, FlagResultWide) | flagIf(r.termsOf(operand.LinearDA) != nil, FlagSecondWide)
	}
	return flags
}

// setFactor describes the factor of a row.
func (r *run) setFactor(a *LinearArgs) {
	if !r.hasFactor {
		return
	}
	number := r.factorNumber()
	r.queue.SetAddress(&a.factor.data, number, r.args[number].Data)
	copy(a.factor.stride[:], r.factor.stride[suffixIn][:])
	a.factorDims = int64(r.factor.dims)
	copy(a.factorExtent[:], r.factor.extent[:])
}

// placeTerms moves results to the place of their terms in the workspace.
func (r *run) placeTerms() {
	for role, number := range r.operands.numbers {
		if s := r.termsOf(number); s != nil {
			r.operands.first[role] = s.terms
		}
	}
}
