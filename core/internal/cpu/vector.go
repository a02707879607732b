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

// Go has no 16-bit floats and its compiler makes no vector code, so the loops over a block are C: a call costs 40 ns, a block of
// 1024 elements about 100 ns.

// float16 and bfloat16 are the bits of 16-bit floats in memory.
type (
	Float16  uint16
	BFloat16 uint16
)

func cFloats(s []float32) *C.float { return (*C.float)(unsafe.Pointer(unsafe.SliceData(s))) }

func cDoubles(s []float64) *C.double { return (*C.double)(unsafe.Pointer(unsafe.SliceData(s))) }

func cHalves[H Float16 | BFloat16](s []H) *C.uint16_t {
	return (*C.uint16_t)(unsafe.Pointer(unsafe.SliceData(s)))
}

func WidenFloat16(out []float32, in []Float16) {
	C.sw_widen_f16(cFloats(out), cHalves(in), C.long(len(in)))
}

func NarrowFloat16(out []Float16, in []float32) {
	C.sw_narrow_f16(cHalves(out), cFloats(in), C.long(len(in)))
}

func WidenBFloat16(out []float32, in []BFloat16) {
	C.sw_widen_bf16(cFloats(out), cHalves(in), C.long(len(in)))
}

func NarrowBFloat16(out []BFloat16, in []float32) {
	C.sw_narrow_bf16(cHalves(out), cFloats(in), C.long(len(in)))
}

func widenInt8(out []float32, in []int8) {
	C.sw_widen_i8(cFloats(out), (*C.int8_t)(unsafe.Pointer(unsafe.SliceData(in))), C.long(len(in)))
}

func widenUint8(out []float32, in []uint8) {
	C.sw_widen_u8(cFloats(out), (*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(in))), C.long(len(in)))
}

// SumRuns sets sums[k] to the sum of the k-th run of values, in a fixed order: small leaves, then a tree.
func SumRuns(sums, values []float64, run int64) {
	C.sw_sum_runs(cDoubles(sums), cDoubles(values), C.long(run), C.long(len(values)))
}

// AddEach adds values to sums, one to one.
func AddEach(sums, values []float64) { C.sw_add(cDoubles(sums), cDoubles(values), C.long(len(values))) }

// The ways in which a factor of a product lies in memory.
const (
	FactorNumber = C.FACTOR_NUMBER
	FactorDense  = C.FACTOR_DENSE
	FactorInt8   = C.FACTOR_I8
	FactorUint8  = C.FACTOR_U8
)

// Products is what one call of the loop over products works on.
type Products struct{ c C.sw_products }

// Begin forgets earlier products: n elements of x lie at an address, in runs that begin a pitch apart.
func (p *Products) Begin(x uintptr, n, run, pitch int64) {
	p.c = C.sw_products{x: C.uintptr_t(x), n: C.long(n), run: C.long(run), pitch: C.long(pitch)}
}

// SumColumns makes sums those of the elements that have the same place in their runs.
func (p *Products) SumColumns() { p.c.columns = 1 }

// Target is the address that the products of one output go to: the one of the three that is not 0, as in vector.h.
type Target struct{ Out, Terms, Sums uintptr }

// Append adds one product.
func (p *Products) Append(to Target, y, z FactorAt) {
	at := &p.c.product[p.c.count]
	at.out, at.terms, at.sums = C.uintptr_t(to.Out), C.uintptr_t(to.Terms), C.uintptr_t(to.Sums)
	at.y, at.z = y.c(), z.c()
	p.c.count++
}

// FactorAt is a factor in memory: step is from run to run.
type FactorAt struct {
	Data uintptr
	Kind int
	Step int64
}

func (f FactorAt) c() C.sw_factor {
	return C.sw_factor{data: C.uintptr_t(f.Data), kind: C.long(f.Kind), step: C.long(f.Step)}
}

// Run computes the products. Operands have the storage type.
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

// VectorWidth is the width, in bits, of the vectors that the loops are made for; setVectorWidth lets tests choose a smaller one.
func VectorWidth() int { return int(C.sw_vector_width) }

func SetVectorWidth(bits int) { C.sw_vector_width = C.int(bits) }

func WidenFloat16Portable(out []float32, in []Float16) {
	C.sw_widen_f16_portable(cFloats(out), cHalves(in), C.long(len(in)))
}

func NarrowFloat16Portable(out []Float16, in []float32) {
	C.sw_narrow_f16_portable(cHalves(out), cFloats(in), C.long(len(in)))
}
