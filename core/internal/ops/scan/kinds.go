package scan

import (
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/scan/gpu"
	"github.com/sternway/sternway/core/internal/ops/scan/host"
	"github.com/sternway/sternway/core/internal/tensor"
)

// Kind is a scan with its gradient. Kinds has all that differs between them.
type Kind struct {
	Name                 string
	ReadsX, ReadsIndices bool  // operands of the gradient beside dy; both: exactly one of them
	CarrySize            int64 // numbers of a row's carry (carry.go)
	// Numbers of a row's carry in the gradient.
	GradientCarrySize, GradientCarrySizeFloat64 int64
	IsMinimum                                   bool // cummin has the kernels of cummax

	recurrence        *host.Recurrence
	backward, forward *gpu.Kind // of the gradient by x, and of the scan without indices
}

// Kinds are the scans. The Python package has the exported fields in _kinds.py. With i, j, k
// counted in scan order, y and its gradient are:
//
//	cumsum          y[i] = sum_{j<=i} x[j]
//	                dx[k] = sum_{i>=k} dy[i]
//	cumprod         y[i] = prod_{j<=i} x[j]
//	                dx[k] = L[k] R[k],  L[k] = prod_{i<k} x[i],  R[k] = dy[k] + x[k+1] R[k+1]
//	cummax, cummin  y[i] = x[w],  indices[i] = w,  x[w] is the largest or smallest of x[j], j <= i
//	                dx[k] = sum of dy from record k to the next record; 0 elsewhere
//	logcumsumexp    y[i] = log sum_{j<=i} exp(x[j])
//	                dx[k] = sum_{i>=k} dy[i] exp(x[k] - y[i])
//
// cumprod does not divide, so zeros need no special case: a product that leaves the range of the
// dtype and comes back is right again, and one that is 0 stays 0 whatever follows, NaN excepted.
// logcumsumexp has a running maximum and sum, so an offset of x costs no accuracy.
//
// The numbers of a carry, and those without elements:
//
//	cumsum          sum; 0
//	cumprod         m, e: the product is m 2^e; 1, 0
//	cummax, cummin  value, index, boundary; -inf or inf, NaN, boundary
//	logcumsumexp    m, t: the sum of exp(x) is exp(m) (1 + t); -inf, -1
//
// boundary is the position at which the next chunk begins or, with Reverse, before which it ends.
var Kinds = []*Kind{
	{Name: "cumsum", CarrySize: 1, GradientCarrySize: 1, GradientCarrySizeFloat64: 1,
		recurrence: &host.Sums, backward: gpu.Cumsum, forward: gpu.Cumsum},
	{Name: "cumprod", ReadsX: true, CarrySize: 2, GradientCarrySize: 2, GradientCarrySizeFloat64: 4,
		recurrence: &host.Products, backward: gpu.Cumprod, forward: gpu.ForwardCumprod},
	{Name: "cummax", ReadsX: true, ReadsIndices: true, CarrySize: 3, GradientCarrySize: 2, GradientCarrySizeFloat64: 2,
		recurrence: &host.Maxima, backward: gpu.Cumextremum, forward: gpu.ForwardCumextremum},
	{Name: "cummin", ReadsX: true, ReadsIndices: true, CarrySize: 3, GradientCarrySize: 2, GradientCarrySizeFloat64: 2,
		IsMinimum: true, recurrence: &host.Minima, backward: gpu.Cumextremum, forward: gpu.ForwardCumextremum},
	{Name: "logcumsumexp", ReadsX: true, CarrySize: 2, GradientCarrySize: 2, GradientCarrySizeFloat64: 2,
		recurrence: &host.LogSums, backward: gpu.Logcumsumexp, forward: gpu.ForwardLogcumsumexp},
}

// ByName are the Kinds by name.
var ByName = func() map[string]*Kind {
	byName := map[string]*Kind{}
	for _, kind := range Kinds {
		byName[kind.Name] = kind
	}
	return byName
}()

// IsOwnGradient reports whether the gradient is the scan in the other direction: it depends on dy
// alone, not even on what precedes a chunk.
func (k *Kind) IsOwnGradient() bool { return k.backward == k.forward }

// gradientCarrySize is the number of numbers of a row's carry in the gradient.
func (k *Kind) gradientCarrySize(dtype tensor.DType) int64 {
	if dtype == tensor.Float64 {
		return k.GradientCarrySizeFloat64
	}
	return k.GradientCarrySize
}

// ties are the rules for equal values.
var ties = []string{"last", "first"}

// Families of the gradients of scans, and of the scans themselves.
var (
	BackwardFamily = register("scan_backward", ops.DecodeAs[ScanBackward], func(k *Kind) *gpu.Kind { return k.backward })
	ForwardFamily  = register("scan", ops.DecodeAs[Scan], func(k *Kind) *gpu.Kind { return k.forward })
)

func register(name string, decode ops.Decoder, kernelsOf func(k *Kind) *gpu.Kind) *ops.Family {
	family := &ops.Family{
		Name: name, Category: "scan", Required: []string{"shape", "dtype"}, Decode: decode,
		HostKernels: host.Kernels,
		Choices:     []ops.Choice{ops.DTypes("dtype", tensor.Floats), ops.Words("tie", ties...)},
	}
	for _, kind := range Kinds {
		family.Kinds = append(family.Kinds, ops.KindRow{Name: kind.Name, Kernels: kernelsOf(kind).Kernels()})
	}
	return ops.Register(family)
}
