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
// one, and so do terms of 16 bits. One factor in a row is faster with the kind that has it: in a
// forward, and in a gradient where db is all that is wanted, and no state enters: it is the
// recurrence of dh in the other direction.
func (r *run) suits(special *Problem, numbers *[numRoles]int) bool {
	a := &r.args[r.factorNumber()]
	isWide := r.isWide(r.factorNumber())
	if special.Kind.hasWide {
		return isWide || len(r.sums) > 0
	}
	if !r.IsForward && (r.noResult || numbers[second] >= 0 || numbers[suffixIn] >= 0 || numbers[suffixOut] >= 0) {
		return false
	}
	isNarrow := special.ElementSize < accumulatorBytes
	isAsked := special.Kernel == r.Plain.Kernel // the kind has the kernel that the caller asks for
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
	*numbers = r.plain
}

// linearFlags are the flags of factors and results.
func (r *run) linearFlags() int64 {
	flags := flagIf(r.noResult, FlagNoResult)
	if r.hasFactor {
		flags |= FlagOneFactor | flagIf(r.isWide(r.factorNumber()), FlagFactorWide)
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
