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

// sumRuns sets sums[k] to the sum of the k-th run of values, in float64 and a fixed order: small leaves, then a tree.
func sumRuns[A accumulator](sums []float64, values []A, run int64) {
	switch v := any(values).(type) {
	case []float32:
		C.sw_sum_runs_f32(cDoubles(sums), cFloats(v), C.long(run), C.long(len(v)))
	case []float64:
		C.sw_sum_runs_f64(cDoubles(sums), cDoubles(v), C.long(run), C.long(len(v)))
	}
}

// runOf is how many of n elements one number of values serves.
func runOf[A accumulator](values []A, n int) C.long { return C.long(n / len(values)) }

// addEach adds values to sums, one to one.
func addEach[A accumulator](sums []float64, values []A) {
	switch v := any(values).(type) {
	case []float32:
		C.sw_add_f32(cDoubles(sums), cFloats(v), C.long(len(v)))
	case []float64:
		C.sw_add_f64(cDoubles(sums), cDoubles(v), C.long(len(v)))
	}
}

// The ways in which a factor of a product lies in memory.
const (
	factorNumber = C.FACTOR_NUMBER
	factorDense  = C.FACTOR_DENSE
	factorInt8   = C.FACTOR_I8
	factorUint8  = C.FACTOR_U8
)

// products is what one call of the loop over products works on.
type products struct{ c C.sw_products }

// begin forgets earlier products: n elements of x lie at an address, in runs.
func (p *products) begin(x uintptr, n, run int64) {
	p.c.x, p.c.n, p.c.run, p.c.count = C.uintptr_t(x), C.long(n), C.long(run), 0
}

// append adds one product, stored at out, or added to sums where out is 0.
func (p *products) append(out, sums uintptr, y, z factorAt) {
	at := &p.c.product[p.c.count]
	at.out, at.sums = C.uintptr_t(out), C.uintptr_t(sums)
	at.y, at.z = y.c(), z.c()
	p.c.count++
}

// factorAt is a factor in memory: for a number, step tells whether each run has its own.
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

func widenFloat16Portable(out []float32, in []float16) {
	C.sw_widen_f16_portable(cFloats(out), cHalves(in), C.long(len(in)))
}

func narrowFloat16Portable(out []float16, in []float32) {
	C.sw_narrow_f16_portable(cHalves(out), cFloats(in), C.long(len(in)))
}
