package cpu

/*
#cgo CFLAGS: -O2
#include "vector.h"

// cgo searches what a pointer to void points at for Go pointers, and leaves out characters.
static void widen(long dtype, float *out, const char *in, long n) { sw_widen(dtype, out, in, n); }
static void widen_packed(int is_signed, float *out, uintptr_t in, long first, long step, long n) {
  sw_widen_packed(is_signed, out, (const uint8_t *)in, first, step, n);
}
static void narrow(long dtype, char *out, const float *in, long n) { sw_narrow(dtype, out, in, n); }
*/
import "C"

import (
	"unsafe"

	"github.com/sternway/sternway/core/internal/tensor"
)

// Loops over blocks are C: Go has no 16-bit floats and its compiler does not vectorize. A call from
// Go to C costs about 40 ns, a block of 1024 elements about 100 ns.

func cFloats(s []float32) *C.float { return (*C.float)(unsafe.Pointer(unsafe.SliceData(s))) }

func cDoubles(s []float64) *C.double { return (*C.double)(unsafe.Pointer(unsafe.SliceData(s))) }

// WidenPacked converts packed integers of host memory to float32: number `first` from an address,
// and every step from there.
func WidenPacked(d tensor.DType, out []float32, address uintptr, first, step int64) {
	isSigned := C.int(1)
	if d.Code == tensor.CodeUint {
		isSigned = 0
	}
	C.widen_packed(isSigned, cFloats(out), C.uintptr_t(address), C.long(first), C.long(step), C.long(len(out)))
}

// Number is the type in memory of elements that are converted to float32: the bits of a float of at
// most 16 bits, or an integer of 8 bits.
type Number interface{ int8 | uint8 | uint16 }

// Widen converts elements of a dtype to float32.
func Widen[S Number](d tensor.DType, out []float32, in []S) {
	C.widen(C.long(d.Row()), cFloats(out), (*C.char)(unsafe.Pointer(unsafe.SliceData(in))), C.long(len(in)))
}

// Narrow converts float32 to a float of at most 16 bits, rounding to nearest even.
func Narrow[S Number](d tensor.DType, out []S, in []float32) {
	C.narrow(C.long(d.Row()), (*C.char)(unsafe.Pointer(unsafe.SliceData(out))), cFloats(in), C.long(len(in)))
}

// SumRuns sets sums[k] to the sum of the k-th run of values by pairwise summation in a fixed order.
func SumRuns(sums, values []float64, run int64) {
	C.sw_sum_runs(cDoubles(sums), cDoubles(values), C.long(run), C.long(len(values)))
}

// AddEach adds values[i] to sums[i].
func AddEach(sums, values []float64) { C.sw_add(cDoubles(sums), cDoubles(values), C.long(len(values))) }

// The memory layouts of a factor: one float64 per run, or one element per element of x, in the
// storage type of x or in 8 bits.
const (
	FactorNumber = C.FACTOR_NUMBER
	FactorDense  = C.FACTOR_DENSE
	FactorInt8   = C.FACTOR_I8
	FactorUint8  = C.FACTOR_U8
)

// Products is the argument of one call of the fused multiply loops: up to three outputs x (y - z)
// of one input x.
type Products struct{ c C.sw_products }

// Begin starts a new set of products over n elements of x at an address. Runs of `run` elements
// begin pitch elements apart.
func (p *Products) Begin(x uintptr, n, run, pitch int64) {
	p.c = C.sw_products{x: C.uintptr_t(x), n: C.long(n), run: C.long(run), pitch: C.long(pitch)}
}

// SumColumns makes sums run over the elements with the same position in their runs, instead of over
// each run.
func (p *Products) SumColumns() { p.c.columns = 1 }

// Target is the destination of one output. Exactly one address is not 0: Out for elements in the
// storage type, Terms for elements in float64, Sums for float64 sums that the products are added
// to.
type Target struct{ Out, Terms, Sums uintptr }

// Append adds one product.
func (p *Products) Append(to Target, y, z FactorAt) {
	at := &p.c.product[p.c.count]
	at.out, at.terms, at.sums = C.uintptr_t(to.Out), C.uintptr_t(to.Terms), C.uintptr_t(to.Sums)
	at.y, at.z = y.c(), z.c()
	p.c.count++
}

// FactorAt is a factor in memory. Step is the distance from run to run in numbers or elements.
type FactorAt struct {
	Data uintptr
	Kind int
	Step int64
}

func (f FactorAt) c() C.sw_factor {
	return C.sw_factor{data: C.uintptr_t(f.Data), kind: C.long(f.Kind), step: C.long(f.Step)}
}

// Run computes the products of operands of a storage type.
func (p *Products) Run(storage tensor.DType) { C.sw_products_of(C.long(storage.Row()), &p.c) }

// VectorWidth is the width in bits of the SIMD vectors that the loops use.
func VectorWidth() int { return int(C.sw_vector_width) }

// SetVectorWidth selects loops with narrower vectors; it is for tests.
func SetVectorWidth(bits int) { C.sw_vector_width = C.int(bits) }

// WidenFloat16Portable is Widen of float16 without the conversion instructions of the processor.
func WidenFloat16Portable(out []float32, in []uint16) {
	C.sw_widen_f16_portable(cFloats(out), (*C.uint16_t)(unsafe.SliceData(in)), C.long(len(in)))
}

// NarrowFloat16Portable is Narrow to float16 without the conversion instructions of the processor.
func NarrowFloat16Portable(out []uint16, in []float32) {
	C.sw_narrow_f16_portable((*C.uint16_t)(unsafe.SliceData(out)), cFloats(in), C.long(len(in)))
}
