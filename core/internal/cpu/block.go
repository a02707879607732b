// Package cpu holds the shared parts of CPU implementations: blocks of elements converted to an
// accumulator type, SIMD loops in C, the iteration space of a pass, and the floating-point mode of
// a thread.
package cpu

import (
	"math"
	"unsafe"

	"github.com/sternway/sternway/core/internal/tensor"
)

// BlockBytes is the size of a block of accumulators. CPU implementations load a block of each
// operand, compute, and store, so that intermediate values stay in the L1 cache.
const BlockBytes = 16384

// Accumulator is a type that CPU implementations compute in.
type Accumulator interface{ float32 | float64 }

// TypeOf is the element type of an accumulator.
func TypeOf[A Accumulator]() tensor.DType {
	var a A
	if unsafe.Sizeof(a) == 8 {
		return tensor.Float64
	}
	return tensor.Float32
}

// BlockLen is the number of accumulators in a block.
func BlockLen[A Accumulator]() int64 {
	var a A
	return BlockBytes / int64(unsafe.Sizeof(a))
}

// Elements is a slice over the memory of t that begins at an offset and covers count elements of
// stride step, both in elements.
func Elements[S any](t *tensor.Tensor, offset, count, step int64) []S {
	var s S
	address := t.Data + uintptr(offset*int64(unsafe.Sizeof(s)))
	return unsafe.Slice((*S)(Pointer(address)), (count-1)*step+1)
}

// Pointer converts the address of host memory to a pointer. The memory must outlive the run: either
// the caller owns it, or Tensor.Pin keeps it alive.
func Pointer(address uintptr) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&address))
}

// gather copies the elements of a view from index start on into dst.
func gather[S any](dst []S, t *tensor.Tensor, v *View, start int64) {
	v.VisitRuns(start, int64(len(dst)), func(at, offset, count, step int64) {
		out := dst[at : at+count]
		switch {
		case step == 1:
			copy(out, Elements[S](t, offset, count, 1))
		case step == 0:
			value := Elements[S](t, offset, 1, 1)[0]
			for i := range out {
				out[i] = value
			}
		case step < 0:
			for i := range out {
				out[i] = Elements[S](t, offset+int64(i)*step, 1, 1)[0]
			}
		default:
			in := Elements[S](t, offset, count, step)
			for i := range out {
				out[i] = in[int64(i)*step]
			}
		}
	})
}

// scatter copies src to the elements of a view from index start on.
func scatter[S any](src []S, t *tensor.Tensor, v *View, start int64) {
	v.VisitRuns(start, int64(len(src)), func(at, offset, count, step int64) {
		in := src[at : at+count]
		switch {
		case step == 1:
			copy(Elements[S](t, offset, count, 1), in)
		case step <= 0:
			for i := range in {
				Elements[S](t, offset+int64(i)*step, 1, 1)[0] = in[i]
			}
		default:
			out := Elements[S](t, offset, count, step)
			for i := range in {
				out[int64(i)*step] = in[i]
			}
		}
	})
}

// Block is the scratch memory of one worker for one operand.
type Block[A Accumulator] struct {
	Wide [BlockBytes / 4]A       // elements converted to the accumulator type
	raw  [BlockBytes / 4]uint64  // elements in the storage type
	half [BlockBytes / 4]float32 // float32 buffer for conversions between types of 8 or 16 bits and float64
	Sums [MaxRuns]float64        // sum of each run of the block
}

// RawOf is the storage buffer of b as n elements of a storage type.
func RawOf[S any, A Accumulator](b *Block[A], n int64) []S {
	return unsafe.Slice((*S)(unsafe.Pointer(&b.raw[0])), n)
}

// Storage converts between a storage type and the accumulator type A. A type that is only stored
// has no Store and no Place.
type Storage[A Accumulator] struct {
	Load  func(b *Block[A], t *tensor.Tensor, v *View, start, n int64) []A
	Store func(b *Block[A], t *tensor.Tensor, v *View, start int64, values []A)
	// Place returns the operand's memory itself if the storage type is A and the elements are
	// adjacent; otherwise nil.
	Place func(t *tensor.Tensor, v *View, start, n int64) []A
}

// storages is the table of Storage by row of tensor.DTypeRows.
func storages[A Accumulator]() [len(tensor.DTypeRows)]Storage[A] {
	var table [len(tensor.DTypeRows)]Storage[A]
	for i := range table {
		table[i] = storageOf[A](tensor.DTypeRows[i].DType)
	}
	return table
}

// storageOf is the storage of a dtype.
func storageOf[A Accumulator](d tensor.DType) Storage[A] {
	switch {
	case d == TypeOf[A]():
		return accumulatorStorage[A]()
	case d.IsPacked():
		return Storage[A]{Load: loadPacked[A](d)}
	case d.IsNarrow():
		return narrowStorage[A](d)
	}
	storage, known := map[tensor.DType]Storage[A]{
		tensor.Float32: convertedStorage[float32, A](), tensor.Float64: convertedStorage[float64, A](),
		tensor.Int8: int8Storage[A, int8](tensor.Int8), tensor.Uint8: int8Storage[A, uint8](tensor.Uint8),
		tensor.Float8E4M3: {Load: loadThroughFloat32[A, uint8](tensor.Float8E4M3)},
		tensor.Float8E5M2: {Load: loadThroughFloat32[A, uint8](tensor.Float8E5M2)},
		tensor.Int32:      convertedStorage[int32, A](), tensor.Int64: convertedStorage[int64, A](),
	}[d]
	if !known {
		panic("no storage of " + d.String())
	}
	return storage
}

// Storages32 and Storages64 are the tables for accumulators of float32 and float64, by row of
// tensor.DTypeRows.
var (
	Storages32 = storages[float32]()
	Storages64 = storages[float64]()
)

func notInPlace[A Accumulator](*tensor.Tensor, *View, int64, int64) []A { return nil }

// accumulatorStorage is the storage of the accumulator type itself. Adjacent elements are used in
// place.
func accumulatorStorage[A Accumulator]() Storage[A] {
	place := func(t *tensor.Tensor, v *View, start, n int64) []A {
		if v.Regular && (v.Step == 1 || n == 1) {
			return Elements[A](t, start*v.Step, n, 1)
		}
		return nil
	}
	return Storage[A]{
		Load: func(b *Block[A], t *tensor.Tensor, v *View, start, n int64) []A {
			if in := place(t, v, start, n); in != nil {
				return in
			}
			gather(b.Wide[:n], t, v, start)
			return b.Wide[:n]
		},
		Store: func(_ *Block[A], t *tensor.Tensor, v *View, start int64, values []A) { scatter(values, t, v, start) },
		Place: place,
	}
}

// convertedStorage is a storage that Go conversions read and write.
func convertedStorage[S float32 | float64 | int8 | uint8 | int32 | int64, A Accumulator]() Storage[A] {
	return Storage[A]{
		Load: func(b *Block[A], t *tensor.Tensor, v *View, start, n int64) []A {
			raw := RawOf[S](b, n)
			gather(raw, t, v, start)
			for i, value := range raw {
				b.Wide[i] = A(value)
			}
			return b.Wide[:n]
		},
		Store: func(b *Block[A], t *tensor.Tensor, v *View, start int64, values []A) {
			raw := RawOf[S](b, int64(len(values)))
			for i, value := range values {
				raw[i] = S(value)
			}
			scatter(raw, t, v, start)
		},
		Place: notInPlace[A],
	}
}

// int8Storage is the storage of 8-bit integers.
func int8Storage[A Accumulator, S int8 | uint8](d tensor.DType) Storage[A] {
	return Storage[A]{Load: loadThroughFloat32[A, S](d), Store: convertedStorage[S, A]().Store, Place: notInPlace[A]}
}

// loadThroughFloat32 is a Load that converts a block to float32 first. Adjacent elements are not
// copied.
func loadThroughFloat32[A Accumulator, S Number](d tensor.DType) func(*Block[A], *tensor.Tensor, *View, int64, int64) []A {
	return func(b *Block[A], t *tensor.Tensor, v *View, start, n int64) []A {
		raw := RawOf[S](b, n)
		if v.Regular && v.Step == 1 {
			raw = Elements[S](t, start, n, 1)
		} else {
			gather(raw, t, v, start)
		}
		if wide, ok := any(b.Wide[:n]).([]float32); ok {
			Widen(d, wide, raw)
			return b.Wide[:n]
		}
		Widen(d, b.half[:n], raw)
		for i, value := range b.half[:n] {
			b.Wide[i] = A(value)
		}
		return b.Wide[:n]
	}
}

// loadPacked is a Load of packed integers. Offsets count elements.
func loadPacked[A Accumulator](d tensor.DType) func(*Block[A], *tensor.Tensor, *View, int64, int64) []A {
	return func(b *Block[A], t *tensor.Tensor, v *View, start, n int64) []A {
		wide, ok := any(b.Wide[:n]).([]float32)
		if !ok {
			wide = b.half[:n]
		}
		v.VisitRuns(start, n, func(at, offset, count, step int64) {
			WidenPacked(d, wide[at:at+count], t.Data, offset, step)
		})
		if !ok {
			for i, value := range wide {
				b.Wide[i] = A(value)
			}
		}
		return b.Wide[:n]
	}
}

// RoundToOdd rounds x to 24 significant bits with round-to-odd, like odd_of in vector.h. A second
// rounding to 16 bits then gives the same result as one rounding from float64. Adding `lost` to the
// low bits carries into bit 29 exactly if one of them is set.
func RoundToOdd(x float64) float32 {
	const lost = 1<<29 - 1
	bits := math.Float64bits(x)
	return float32(math.Float64frombits((bits | (bits&lost + lost)) &^ lost))
}

// narrowStorage is the storage of a float of 16 bits, converted through float32.
func narrowStorage[A Accumulator](d tensor.DType) Storage[A] {
	return Storage[A]{
		Load: loadThroughFloat32[A, uint16](d),
		Store: func(b *Block[A], t *tensor.Tensor, v *View, start int64, values []A) {
			n := int64(len(values))
			narrowed, ok := any(values).([]float32)
			if !ok {
				narrowed = b.half[:n]
				for i, value := range values {
					narrowed[i] = RoundToOdd(float64(value))
				}
			}
			if v.Regular && v.Step == 1 {
				Narrow(d, Elements[uint16](t, start, n, 1), narrowed)
				return
			}
			raw := RawOf[uint16](b, n)
			Narrow(d, raw, narrowed)
			scatter(raw, t, v, start)
		},
		Place: notInPlace[A],
	}
}

// Grain is the grain size of CPU runs: the number of elements of one task. It is large enough to
// amortize handing a task to a worker, and small enough to balance the load.
const Grain = 32768

// ShortRun is the extent of the fastest dimension from which it is worth a loop of its own.
const ShortRun = 128

// MaxRuns is the largest number of runs in a block.
const MaxRuns = Grain / ShortRun
