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
	plain     [numRoles]int   // numbers of the operands as the kind with a factor for each element has them
	sums      []sumOfRun
}

// factorNumber is the number of a in the arguments of a run.
func (s *Scan) factorNumber() int {
	if s.IsForward {
		return operand.LinearA
	}
	return operand.LinearBackwardA
}

// chooseSpecial takes the first special kind that suits the run.
func (r *run) chooseSpecial(numbers *[numRoles]int) {
	if r.Plain.Rows == 0 || r.Plain.Length == 0 {
		return
	}
	first, number := len(r.Plain.Kind.Kernels()), r.factorNumber()
	for i := range r.Special {
		special := &r.Special[i]
		if r.suits(special, numbers) {
			r.problem, r.firstKernel, r.plain = *special, first, *numbers
			break
		}
		first += len(special.Kind.Kernels())
	}
	if r.hasFactor = r.problem.Kind.hasOneFactor || r.problem.Kind.hasWide && r.isWide(number); !r.hasFactor {
		return
	}
	only := noNumbers()
	if only[result], only[suffixIn] = numbers[result], number; r.problem.Kind.hasOneFactor {
		numbers[saved], numbers[states], numbers[prefixIn] = -1, -1, -1
	}
	r.factor = stridedOf(r.Shape, r.Dim, only, r.args, true)
}

// suits reports whether a special kind computes the run. A number of 32 bits beside 16 bits needs
// one, and so do terms of 16 bits. Terms that are summed along rows are fewer with the kind that
// sums them. One factor in a row is faster with the kind that has it: in a forward, and in a
// gradient where db is all that is wanted and no state enters or leaves, which is the recurrence of
// dh in the other direction.
func (r *run) suits(special *Problem, numbers *[numRoles]int) bool {
	a := &r.args[r.factorNumber()]
	isWide, isNarrow := r.isWide(r.factorNumber()), special.ElementSize < accumulatorBytes
	isAsked := special.Kernel == r.Plain.Kernel // the kind has the kernel that the caller asks for
	if special.Kind.hasWide {
		s := r.termsOf(operand.LinearDA)
		return isWide || isNarrow && len(r.sums) > 0 || isAsked && s != nil && isReduced(r.Shape, s.Shape, r.Dim)
	}
	if !r.IsForward && (r.noResult || numbers[second] >= 0 || numbers[suffixIn] >= 0 || numbers[suffixOut] >= 0) {
		return false
	}
	return (isWide || isAsked && r.hasOneFactor(a)) && !(isNarrow && len(r.sums) > 0)
}

// accumulatorBytes is the size of the smallest accumulators.
const accumulatorBytes = 4

// isWide reports whether an operand has the type of accumulators where elements have another one.
func (r *run) isWide(number int) bool { return r.args[number].DType.Size() > r.Plain.ElementSize }

// hasOneFactor reports whether a is one number along each row, and a kernel may find it by the row.
func (r *run) hasOneFactor(a *tensor.Tensor) bool {
	return len(r.Shape) > 0 && a.ElementStrides()[r.Dim] == 0 && r.Plain.Rows <= math.MaxUint32
}

// isUnsuited reports whether a kernel has several rows in a warp, for which a special kind was no
// good choice: their factors differ, or it does not sum their terms.
func (r *run) isUnsuited(c *Config) bool {
	kind := r.problem.Kind
	if c.RowsPerWarp == 0 || !kind.hasOneFactor && !kind.hasWide {
		return false
	}
	if kind.hasWide {
		return !r.hasFactor && r.problem.ElementSize >= accumulatorBytes
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
	*numbers = r.plain
}

// linearFlags are the flags of factors and results.
func (r *run) linearFlags() int64 {
	flags := flagIf(r.noResult, FlagNoResult)
	if r.hasFactor {
		flags |= FlagOneFactor | flagIf(r.isWide(r.factorNumber()), FlagFactorWide)
	}
	if r.problem.Kind.hasWide {
		flags |= flagIf(r.termsOf(operand.LinearDB) != nil, FlagResultWide)
		if s := r.termsOf(operand.LinearDA); s != nil {
			flags |= FlagSecondWide | flagIf(s.hasGroups, FlagSecondSummed)
		}
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
