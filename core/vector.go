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

// one is a number for a whole block.
func one[A accumulator](value A) []A { return []A{value} }

// runOf is how many of n elements one number of values serves.
func runOf[A accumulator](values []A, n int) C.long { return C.long(n / len(values)) }

// multiply is out = x y, or nothing where nobody asked for out. A number of y may serve a run of elements.
func multiply[A accumulator](out, x, y []A) {
	if out == nil {
		return
	}
	n, yRun := len(x), runOf(y, len(x))
	switch o := any(out).(type) {
	case []float32:
		C.sw_multiply_f32(cFloats(o), cFloats(any(x).([]float32)), cFloats(any(y).([]float32)), yRun, C.long(n))
	case []float64:
		C.sw_multiply_f64(cDoubles(o), cDoubles(any(x).([]float64)), cDoubles(any(y).([]float64)), yRun, C.long(n))
	}
}

// shifted is out = x (y - z), or nothing where nobody asked for out. A number of y or z may serve a run of elements.
func shifted[A accumulator](out, x, y, z []A) {
	if out == nil {
		return
	}
	n, yRun, zRun := len(x), runOf(y, len(x)), runOf(z, len(x))
	switch o := any(out).(type) {
	case []float32:
		C.sw_shifted_f32(cFloats(o), cFloats(any(x).([]float32)), cFloats(any(y).([]float32)), yRun, cFloats(any(z).([]float32)), zRun, C.long(n))
	case []float64:
		C.sw_shifted_f64(cDoubles(o), cDoubles(any(x).([]float64)), cDoubles(any(y).([]float64)), yRun, cDoubles(any(z).([]float64)), zRun, C.long(n))
	}
}

func widenFloat16Portable(out []float32, in []float16) {
	C.sw_widen_f16_portable(cFloats(out), cHalves(in), C.long(len(in)))
}

func narrowFloat16Portable(out []float16, in []float32) {
	C.sw_narrow_f16_portable(cHalves(out), cFloats(in), C.long(len(in)))
}
