package cpu

/*
#cgo CFLAGS: -O2
#include "vector.h"
*/
import "C"

import (
	"unsafe"

	"github.com/sternway/sternway/core/internal/tensor"
)

// Loops over blocks are C: Go has no 16-bit floats and its compiler does not vectorize. A call from
// Go to C costs about 40 ns, a block of 1024 elements about 100 ns.

// Float16 and BFloat16 are the bit patterns of 16-bit floats.
type (
	Float16  uint16
	BFloat16 uint16
)

func cFloats(s []float32) *C.float { return (*C.float)(unsafe.Pointer(unsafe.SliceData(s))) }

func cDoubles(s []float64) *C.double { return (*C.double)(unsafe.Pointer(unsafe.SliceData(s))) }

func cHalves[H Float16 | BFloat16](s []H) *C.uint16_t {
	return (*C.uint16_t)(unsafe.Pointer(unsafe.SliceData(s)))
}

// WidenFloat16 converts float16 to float32.
func WidenFloat16(out []float32, in []Float16) {
	C.sw_widen_f16(cFloats(out), cHalves(in), C.long(len(in)))
}

// NarrowFloat16 converts float32 to float16, rounding to nearest even.
func NarrowFloat16(out []Float16, in []float32) {
	C.sw_narrow_f16(cHalves(out), cFloats(in), C.long(len(in)))
}

// WidenBFloat16 converts bfloat16 to float32.
func WidenBFloat16(out []float32, in []BFloat16) {
	C.sw_widen_bf16(cFloats(out), cHalves(in), C.long(len(in)))
}

// NarrowBFloat16 converts float32 to bfloat16, rounding to nearest even.
func NarrowBFloat16(out []BFloat16, in []float32) {
	C.sw_narrow_bf16(cHalves(out), cFloats(in), C.long(len(in)))
}

func widenInt8(out []float32, in []int8) {
	C.sw_widen_i8(cFloats(out), (*C.int8_t)(unsafe.Pointer(unsafe.SliceData(in))), C.long(len(in)))
}

func widenUint8(out []float32, in []uint8) {
	C.sw_widen_u8(cFloats(out), (*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(in))), C.long(len(in)))
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
func (p *Products) Run(storage tensor.DType) {
	switch storage {
	case tensor.Float32:
		C.sw_products_f32(&p.c)
	case tensor.Float64:
		C.sw_products_f64(&p.c)
	case tensor.Float16:
		C.sw_products_f16(&p.c)
	case tensor.BFloat16:
		C.sw_products_bf16(&p.c)
	}
}

// VectorWidth is the width in bits of the SIMD vectors that the loops use.
func VectorWidth() int { return int(C.sw_vector_width) }

// SetVectorWidth selects loops with narrower vectors; it is for tests.
func SetVectorWidth(bits int) { C.sw_vector_width = C.int(bits) }

// WidenFloat16Portable is WidenFloat16 without the conversion instructions of the processor.
func WidenFloat16Portable(out []float32, in []Float16) {
	C.sw_widen_f16_portable(cFloats(out), cHalves(in), C.long(len(in)))
}

// NarrowFloat16Portable is NarrowFloat16 without the conversion instructions of the processor.
func NarrowFloat16Portable(out []Float16, in []float32) {
	C.sw_narrow_f16_portable(cHalves(out), cFloats(in), C.long(len(in)))
}
