// Package tensor describes operands: views of memory owned by the caller, with address, dtype,
// device, shape and strides. It also decides whether two views overlap.
package tensor

import (
	"encoding/json"
	"fmt"
	"math"
	"math/bits"
	"strings"
	"unsafe"
)

// MaxRank is the largest number of dimensions of a tensor.
const MaxRank = 8

// Device is a DLPack device: its type and its ordinal.
type Device struct{ Type, Index int32 }

// DLPack device types that an operand may live on.
const (
	DeviceCPU        = 1
	DeviceCUDA       = 2
	DeviceCUDAHost   = 3
	deviceCUDAManage = 13
)

// CPU is the host device.
var CPU = Device{DeviceCPU, 0}

// CUDA is the n-th CUDA device of the driver.
func CUDA(n int) Device { return Device{DeviceCUDA, int32(n)} }

// String spells a device as PyTorch does.
func (d Device) String() string {
	switch d.Type {
	case DeviceCPU:
		return "cpu"
	case DeviceCUDA:
		return fmt.Sprintf("cuda:%d", d.Index)
	case DeviceCUDAHost:
		return "cpu (pinned)"
	case deviceCUDAManage:
		return fmt.Sprintf("cuda:%d (managed)", d.Index)
	}
	return fmt.Sprintf("DLPack device %d:%d", d.Type, d.Index)
}

// Tensor is a view of memory owned by the caller. The struct has the layout of sw_tensor in
// pybind/pytensor, so that a tensor passes from C to Go without a conversion. Data is an integer,
// invisible to the garbage collector.
type Tensor struct {
	Data     uintptr // address of the first element; 0 when the tensor is empty
	DType    DType
	Device   Device
	NDim     int32
	Present  int32 // 0: the operand is absent
	ReadOnly int32
	Shape    [MaxRank]int64
	Strides  [MaxRank]int64 // in elements
	Pin      unsafe.Pointer // keeps memory made in Go alive and in place
}

// Of is a view of a Go slice, row-major, with the given shape; no shape means [len(data)].
// For float16 and bfloat16 give the bits as []uint16 and name the type with [Tensor.As].
func Of[T float32 | float64 | uint16 | int8 | uint8 | int32 | int64](data []T, shape ...int64) Tensor {
	var zero T
	dtypes := map[string]DType{"float32": Float32, "float64": Float64, "uint16": Float16,
		"int8": Int8, "uint8": Uint8, "int32": Int32, "int64": Int64}
	if shape == nil {
		shape = []int64{int64(len(data))}
	}
	t := Tensor{DType: dtypes[fmt.Sprintf("%T", zero)], Device: CPU, NDim: int32(len(shape)), Present: 1}
	copy(t.Shape[:], shape)
	copy(t.Strides[:], Compact(shape))
	if n, ok := Product(shape); !ok || n != int64(len(data)) {
		panic(fmt.Sprintf("core.Of: %d elements do not fill shape %s", len(data), ShapeText(shape)))
	}
	if len(data) > 0 {
		t.Pin = unsafe.Pointer(&data[0])
		t.Data = uintptr(t.Pin)
	}
	return t
}

// As is the same memory under another dtype of the same size.
func (t Tensor) As(d DType) Tensor { t.DType = d; return t }

// Given reports whether the operand is present.
func (t *Tensor) Given() bool { return t.Present != 0 }

// Extents are the extents of the NDim dimensions.
func (t *Tensor) Extents() []int64 { return t.Shape[:t.NDim] }

// ElementStrides are the strides of the NDim dimensions, in elements.
func (t *Tensor) ElementStrides() []int64 { return t.Strides[:t.NDim] }

// Contiguous reports whether the elements are contiguous in row-major order.
func (t *Tensor) Contiguous() bool {
	step := int64(1)
	for d := t.NDim - 1; d >= 0; d-- {
		if t.Shape[d] != 1 && t.Strides[d] != step {
			return t.Empty()
		}
		step *= t.Shape[d]
	}
	return true
}

// Empty reports whether t has no element.
func (t *Tensor) Empty() bool {
	for _, n := range t.Extents() {
		if n == 0 {
			return true
		}
	}
	return false
}

// Span is the half-open range of byte addresses that t touches, relative to its data: low <= 0 <
// high, or (0, 0) for an empty tensor. ok is false if an end is out of the address space.
func (t *Tensor) Span() (low, high int64, ok bool) {
	if t.Empty() {
		return 0, 0, true
	}
	for i, n := range t.Extents() {
		reach, fits := mul(n-1, t.Strides[i])
		if !fits {
			return 0, 0, false
		}
		end := &high
		if reach < 0 {
			end = &low
		}
		if *end, fits = add(*end, reach); !fits {
			return 0, 0, false
		}
	}
	size := t.DType.Size()
	low, okLow := mul(low, size)
	high, okHigh := mul(high+1, size)
	return low, high, okLow && okHigh && int64(t.Data) >= 0 && int64(t.Data) <= math.MaxInt64-high && int64(t.Data)+low >= 0
}

// Same reports whether a and b view exactly the same elements in the same order.
func (t *Tensor) Same(o *Tensor) bool {
	if t.Data != o.Data || t.DType != o.DType || t.NDim != o.NDim {
		return false
	}
	for i, n := range t.Extents() {
		if n != o.Shape[i] || n > 1 && t.Strides[i] != o.Strides[i] {
			return false
		}
	}
	return true
}

// add is a + b, and whether it fits.
func add(a, b int64) (int64, bool) {
	c := a + b
	return c, (c > a) == (b > 0) || b == 0
}

// mul is a * b, and whether it fits.
func mul(a, b int64) (int64, bool) {
	magnitude := func(v int64) uint64 {
		if v < 0 {
			return -uint64(v)
		}
		return uint64(v)
	}
	high, low := bits.Mul64(magnitude(a), magnitude(b))
	return a * b, high == 0 && low <= math.MaxInt64
}

// Product is the number of elements of a shape, and whether it fits an int64. It is 0 if any extent
// is 0.
func Product(shape []int64) (int64, bool) {
	n, fits := int64(1), true
	for _, e := range shape {
		if e == 0 {
			return 0, true
		}
		var ok bool
		if n, ok = mul(n, e); !ok {
			fits = false
		}
	}
	return n, fits
}

// Compact are the row-major strides of a shape.
func Compact(shape []int64) []int64 {
	strides, step := make([]int64, len(shape)), int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		strides[i] = step
		step *= max(shape[i], 1)
	}
	return strides
}

// ShapeText spells a shape as PyTorch does: [2, 3].
func ShapeText(shape []int64) string {
	return strings.ReplaceAll(fmt.Sprint(append([]int64{}, shape...)), " ", ", ")
}

// DescribeJSON describes a tensor to Python.
func (t *Tensor) DescribeJSON() string {
	text, _ := json.Marshal(map[string]any{
		"shape": t.Extents(), "strides": t.ElementStrides(), "dtype": t.DType.String(), "device": []int32{t.Device.Type, t.Device.Index},
		"data": t.Data, "itemsize": t.DType.Size(), "read_only": t.ReadOnly != 0,
	})
	return string(text)
}
