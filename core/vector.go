package core

/*
#cgo CFLAGS: -O2
#include "vector.h"
*/
import "C"

import "unsafe"

// Go has no 16-bit floats and its compiler makes no vector code, so the loops over a block are C: a call costs 40 ns, a block of
// 1024 elements about 100 ns.

// float16 and bfloat16 are the bits of 16-bit floats in memory.
type (
	float16  uint16
	bfloat16 uint16
)

func cFloats(s []float32) *C.float { return (*C.float)(unsafe.Pointer(unsafe.SliceData(s))) }

func cDoubles(s []float64) *C.double { return (*C.double)(unsafe.Pointer(unsafe.SliceData(s))) }

func cHalves[H float16 | bfloat16](s []H) *C.uint16_t {
	return (*C.uint16_t)(unsafe.Pointer(unsafe.SliceData(s)))
}

func widenFloat16(out []float32, in []float16) {
	C.sw_widen_f16(cFloats(out), cHalves(in), C.long(len(in)))
}

func narrowFloat16(out []float16, in []float32) {
	C.sw_narrow_f16(cHalves(out), cFloats(in), C.long(len(in)))
}

func widenBFloat16(out []float32, in []bfloat16) {
	C.sw_widen_bf16(cFloats(out), cHalves(in), C.long(len(in)))
}

func narrowBFloat16(out []bfloat16, in []float32) {
	C.sw_narrow_bf16(cHalves(out), cFloats(in), C.long(len(in)))
}

func widenInt8(out []float32, in []int8) {
	C.sw_widen_i8(cFloats(out), (*C.int8_t)(unsafe.Pointer(unsafe.SliceData(in))), C.long(len(in)))
}

func widenUint8(out []float32, in []uint8) {
	C.sw_widen_u8(cFloats(out), (*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(in))), C.long(len(in)))
}

// sumRuns sets sums[k] to the sum of the k-th run of values, in a fixed order: small leaves, then a tree.
func sumRuns(sums, values []float64, run int64) {
	C.sw_sum_runs(cDoubles(sums), cDoubles(values), C.long(run), C.long(len(values)))
}

// runOf is how many of n elements one number of values serves.
func runOf[A accumulator](values []A, n int) C.long { return C.long(n / len(values)) }

// addEach adds values to sums, one to one.
func addEach(sums, values []float64) { C.sw_add(cDoubles(sums), cDoubles(values), C.long(len(values))) }

// The ways in which a factor of a product lies in memory.
const (
	factorNumber = C.FACTOR_NUMBER
	factorDense  = C.FACTOR_DENSE
	factorInt8   = C.FACTOR_I8
	factorUint8  = C.FACTOR_U8
)

// products is what one call of the loop over products works on.
type products struct{ c C.sw_products }

// begin forgets earlier products: n elements of x lie at an address, in runs that begin a pitch apart.
func (p *products) begin(x uintptr, n, run, pitch int64) {
	p.c = C.sw_products{x: C.uintptr_t(x), n: C.long(n), run: C.long(run), pitch: C.long(pitch)}
}

// sumColumns makes sums those of the elements that have the same place in their runs.
func (p *products) sumColumns() { p.c.columns = 1 }

// target is the address that the products of one output go to: the one of the three that is not 0, as in vector.h.
type target struct{ out, terms, sums uintptr }

// append adds one product.
func (p *products) append(to target, y, z factorAt) {
	at := &p.c.product[p.c.count]
	at.out, at.terms, at.sums = C.uintptr_t(to.out), C.uintptr_t(to.terms), C.uintptr_t(to.sums)
	at.y, at.z = y.c(), z.c()
	p.c.count++
}

// factorAt is a factor in memory: step is from run to run.
type factorAt struct {
	data uintptr
	kind int
	step int64
}

func (f factorAt) c() C.sw_factor {
	return C.sw_factor{data: C.uintptr_t(f.data), kind: C.long(f.kind), step: C.long(f.step)}
}

// run computes the products. Operands have the storage type.
func (p *products) run(storage DType) {
	switch storage {
	case Float32:
		C.sw_products_f32(&p.c)
	case Float64:
		C.sw_products_f64(&p.c)
	case Float16:
		C.sw_products_f16(&p.c)
	case BFloat16:
		C.sw_products_bf16(&p.c)
	}
}

// vectorWidth is the width, in bits, of the vectors that the loops are made for; setVectorWidth lets tests choose a smaller one.
func vectorWidth() int { return int(C.sw_vector_width) }

func setVectorWidth(bits int) { C.sw_vector_width = C.int(bits) }

func widenFloat16Portable(out []float32, in []float16) {
	C.sw_widen_f16_portable(cFloats(out), cHalves(in), C.long(len(in)))
}

func narrowFloat16Portable(out []float16, in []float32) {
	C.sw_narrow_f16_portable(cHalves(out), cFloats(in), C.long(len(in)))
}
