package coretest

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"testing"
	"unsafe"

	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/stretchr/testify/require"
)

// Memory is an operand in an allocation of its own, between guard zones that nobody may write.
type Memory struct {
	tensor.Tensor
	Bytes  []byte // the allocation
	first  int64  // where in it the first element lies
	Before []byte // what it held when it was last sealed
}

// Layout chooses strides, in elements, for a shape.
type Layout struct {
	Name    string
	Aligned bool // the first element lies at a multiple of 16 bytes, otherwise one element behind
	Strides func(shape []int64) []int64
}

// The layouts of operands in conformance tests.
var (
	Contiguous = Layout{"contiguous", true, tensor.Compact}
	Behind     = Layout{"behind", false, tensor.Compact}
	Permuted   = Layout{"permuted", true, func(shape []int64) []int64 { // the first dimension runs fastest
		reversed := slices.Clone(shape)
		slices.Reverse(reversed)
		strides := tensor.Compact(reversed)
		slices.Reverse(strides)
		return strides
	}}
	Padded = Layout{"padded", true, func(shape []int64) []int64 { // rows begin at multiples of 16 elements
		pitched := slices.Clone(shape)
		if last := len(pitched) - 1; last >= 0 {
			pitched[last] = num.CeilDiv(pitched[last], 16)*16 + 16
		}
		return tensor.Compact(pitched)
	}}
	Gapped = Layout{"gapped", false, func(shape []int64) []int64 { // every second column of rows that are three columns too long
		strides, step := make([]int64, len(shape)), int64(2)
		for d := len(shape) - 1; d >= 0; d-- {
			strides[d] = step
			step = step*max(shape[d], 1) + 3
		}
		return strides
	}}
	Flipped = Layout{"flipped", false, func(shape []int64) []int64 { // the last dimension and every second one before it run backwards
		strides := tensor.Compact(shape)
		for d := len(shape) - 1; d >= 0; d -= 2 {
			strides[d] = -strides[d]
		}
		return strides
	}}
	Expanded = Layout{"expanded", false, func(shape []int64) []int64 { return make([]int64, len(shape)) }} // one number everywhere
	Striped  = Layout{"striped", true, func(shape []int64) []int64 {                                       // expanded along every second dimension
		strides, step := make([]int64, len(shape)), int64(1)
		for d := len(shape) - 1; d >= 0; d -= 2 {
			strides[d] = step
			step *= max(shape[d], 1)
		}
		return strides
	}}
)

// odometer visits the indices of a shape in row-major order with the offset that each has under
// some strides.
func odometer(shape, strides []int64, visit func(offset int64)) {
	if slices.Contains(shape, 0) {
		return
	}
	var index [tensor.MaxRank]int64
	for offset, d := int64(0), 0; d >= 0; {
		visit(offset)
		for d = len(shape) - 1; d >= 0; d-- {
			index[d]++
			offset += strides[d]
			if index[d] < shape[d] {
				break
			}
			offset -= index[d] * strides[d]
			index[d] = 0
		}
	}
}

// Concrete is a shape that an operand may have, where some of its extents are free.
func Concrete(shape []int64) []int64 {
	shape = slices.Clone(shape)
	for d := range shape {
		if shape[d] == ops.AnyExtent {
			shape[d] = 7
		}
	}
	return shape
}

const guard = 64 // bytes, at the least

// NewMemory allocates room for a shape under a layout.
func NewMemory(d tensor.DType, device tensor.Device, shape []int64, l Layout) *Memory {
	m := &Memory{Tensor: tensor.Tensor{DType: d, Device: device, NDim: int32(len(shape)), Present: 1}}
	strides := l.Strides(shape)
	copy(m.Shape[:], shape)
	copy(m.Strides[:], strides)
	low, high := int64(0), int64(-1)
	odometer(shape, strides, func(offset int64) { low, high = min(low, offset), max(high, offset) })
	size := d.Size()
	words := make([]uint64, (3*guard+(high+1-low)*size+7)/8)
	m.Bytes = unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(words)*8)
	m.first = guard - low*size
	m.first += 16 - int64(uintptr(unsafe.Pointer(&m.Bytes[m.first]))%16)
	if !l.Aligned {
		m.first += size
	}
	m.Pin = unsafe.Pointer(&m.Bytes[m.first])
	m.Data = uintptr(m.Pin)
	for i := range m.Bytes {
		m.Bytes[i] = 0xa5
	}
	return m
}

// each visits the bytes of every element in row-major order.
func (m *Memory) each(visit func(i int64, element []byte)) {
	size, i := m.DType.Size(), int64(0)
	odometer(m.Extents(), m.ElementStrides(), func(offset int64) {
		at := m.first + offset*size
		visit(i, m.Bytes[at:at+size])
		i++
	})
}

// Fill stores value(i), rounded to the dtype, at the i-th element; the last of those that share
// memory stays.
func (m *Memory) Fill(value func(i int64) float64) *Memory {
	m.each(func(i int64, element []byte) { Encode(m.DType, element, value(i)) })
	return m.Seal()
}

// Poison fills every element with the bits of a NaN.
func (m *Memory) Poison() *Memory {
	m.each(func(_ int64, element []byte) {
		for i := range element {
			element[i] = 0xff
		}
	})
	return m.Seal()
}

// Seal remembers every byte.
func (m *Memory) Seal() *Memory {
	m.Before = slices.Clone(m.Bytes)
	return m
}

// Values are the elements in row-major order.
func (m *Memory) Values() []float64 {
	n, _ := tensor.Product(m.Extents())
	list := make([]float64, 0, n)
	m.each(func(_ int64, element []byte) { list = append(list, Decode(m.DType, element)) })
	return list
}

// Value is the k-th element in row-major order.
func (m *Memory) Value(k int64) float64 {
	at, size := m.first, m.DType.Size()
	for d := len(m.Extents()) - 1; d >= 0; d-- {
		at += k % m.Shape[d] * m.Strides[d] * size
		k /= m.Shape[d]
	}
	return Decode(m.DType, m.Bytes[at:at+size])
}

// Bits are the elements' bytes in row-major order.
func (m *Memory) Bits() []byte {
	n, _ := tensor.Product(m.Extents())
	list := make([]byte, 0, n*m.DType.Size())
	m.each(func(_ int64, element []byte) { list = append(list, element...) })
	return list
}

// RequireSame is require.Equal for many numbers: without reflection unless they differ.
func RequireSame(t testing.TB, want, got []float64, message ...any) {
	if !slices.Equal(want, got) {
		t.Helper()
		require.Equal(t, want, got, message...)
	}
}

// RequireUntouched fails when a byte has changed since the last seal.
func (m *Memory) RequireUntouched(t *testing.T, what string) {
	t.Helper()
	require.True(t, bytes.Equal(m.Before, m.Bytes), "%s was written", what)
}

// RequireOnlyElementsWritten fails when a byte that belongs to no element has changed.
func (m *Memory) RequireOnlyElementsWritten(t *testing.T, what string) {
	t.Helper()
	outside := *m
	outside.Bytes = slices.Clone(m.Bytes)
	size := m.DType.Size()
	odometer(m.Extents(), m.ElementStrides(), func(offset int64) {
		at := m.first + offset*size
		copy(outside.Bytes[at:at+size], m.Before[at:at+size])
	})
	outside.RequireUntouched(t, "memory around "+what)
}

// Encode stores a number in a dtype.
func Encode(d tensor.DType, to []byte, v float64) {
	word := uint64(int64(v)) // of an integer: the low bytes of two's complement
	switch {
	case d == tensor.Float64:
		word = math.Float64bits(v)
	case d == tensor.Float32:
		word = uint64(math.Float32bits(float32(v)))
	case d.IsNarrow():
		word = uint64(NarrowFormats[d].Nearest(v))
	}
	var element [8]byte
	binary.LittleEndian.PutUint64(element[:], word)
	copy(to[:d.Size()], element[:])
}

// Decode reads a number of a dtype.
func Decode(d tensor.DType, from []byte) float64 {
	var element [8]byte
	copy(element[:d.Size()], from)
	word := binary.LittleEndian.Uint64(element[:])
	switch {
	case d == tensor.Float64:
		return math.Float64frombits(word)
	case d == tensor.Float32:
		return float64(math.Float32frombits(uint32(word)))
	case d.IsNarrow():
		return NarrowFormats[d].Values[word]
	case d.Code == tensor.CodeUint:
		return float64(word)
	}
	unused := 64 - 8*d.Size()
	return float64(int64(word<<unused) >> unused)
}

// rounded is v as the dtype stores it.
func rounded(d tensor.DType, v float64) float64 {
	var element [8]byte
	Encode(d, element[:], v)
	return Decode(d, element[:d.Size()])
}
