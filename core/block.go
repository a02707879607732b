package core

import (
	"math"
	"unsafe"
)

// The CPU bodies work on blocks: up to blockBytes of each operand, widened to the accumulator, so that everything between the
// loads and the stores stays in the first-level cache.
const blockBytes = 16384

type accumulator interface{ float32 | float64 }

// typeOf is the element type of an accumulator.
func typeOf[A accumulator]() DType {
	var a A
	if unsafe.Sizeof(a) == 8 {
		return Float64
	}
	return Float32
}

// blockLen is the number of accumulators in a block.
func blockLen[A accumulator]() int64 {
	var a A
	return blockBytes / int64(unsafe.Sizeof(a))
}

// elements is the memory of t as a slice that begins at an offset and spans count elements of a stride.
func elements[S any](t *Tensor, offset, count, step int64) []S {
	var s S
	address := t.Data + uintptr(offset*int64(unsafe.Sizeof(s)))
	return unsafe.Slice((*S)(pointer(address)), (count-1)*step+1)
}

// pointer turns the address of host memory into a pointer. The memory is the caller's and outlives the run, and a Go slice is
// kept in place by its tensor, so the garbage collector needs no part in it.
func pointer(address uintptr) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&address))
}

// gather copies the elements start.. of a view into dst.
func gather[S any](dst []S, t *Tensor, v *view, start int64) {
	v.pieces(start, int64(len(dst)), func(at, offset, count, step int64) {
		out := dst[at : at+count]
		switch {
		case step == 1:
			copy(out, elements[S](t, offset, count, 1))
		case step == 0:
			value := elements[S](t, offset, 1, 1)[0]
			for i := range out {
				out[i] = value
			}
		case step < 0:
			for i := range out {
				out[i] = elements[S](t, offset+int64(i)*step, 1, 1)[0]
			}
		default:
			in := elements[S](t, offset, count, step)
			for i := range out {
				out[i] = in[int64(i)*step]
			}
		}
	})
}

// scatter copies src to the elements start.. of a view.
func scatter[S any](src []S, t *Tensor, v *view, start int64) {
	v.pieces(start, int64(len(src)), func(at, offset, count, step int64) {
		in := src[at : at+count]
		switch {
		case step == 1:
			copy(elements[S](t, offset, count, 1), in)
		case step <= 0:
			for i := range in {
				elements[S](t, offset+int64(i)*step, 1, 1)[0] = in[i]
			}
		default:
			out := elements[S](t, offset, count, step)
			for i := range in {
				out[int64(i)*step] = in[i]
			}
		}
	})
}

// block is the scratch of one operand of one worker.
type block[A accumulator] struct {
	wide [blockBytes / 4]A
	raw  [blockBytes / 4]uint64 // room for a block of any storage type
	half [blockBytes / 4]float32
	sums [maxRuns]float64 // of the runs of a block
}

// rawOf is the raw room of b as n elements of a storage type.
func rawOf[S any, A accumulator](b *block[A], n int64) []S {
	return unsafe.Slice((*S)(unsafe.Pointer(&b.raw[0])), n)
}

// storage is how one element type is read into accumulators and written from them.
type storage[A accumulator] struct {
	load  func(b *block[A], t *Tensor, v *view, start, n int64) []A
	store func(b *block[A], t *Tensor, v *view, start int64, values []A)
	// place is the memory itself as accumulators where the type is A's own and the elements are adjacent, else nil.
	place func(t *Tensor, v *view, start, n int64) []A
}

// storages is the table by dtype row.
func storages[A accumulator](own DType) [len(dtypeRows)]storage[A] {
	var table [len(dtypeRows)]storage[A]
	for i, s := range [...]storage[A]{
		plain[float32, A](), plain[float64, A](),
		half[A](widenFloat16, narrowFloat16), half[A](widenBFloat16, narrowBFloat16),
		narrow8[A](widenInt8), narrow8[A](widenUint8), plain[int32, A](), plain[int64, A](),
	} {
		if dtypeRows[i].dtype == own {
			s = same[A]()
		}
		table[i] = s
	}
	return table
}

var (
	storages32 = storages[float32](Float32)
	storages64 = storages[float64](Float64)
)

func nowhere[A accumulator](*Tensor, *view, int64, int64) []A { return nil }

// same is the storage of the accumulator's own type: adjacent elements are used where they lie.
func same[A accumulator]() storage[A] {
	place := func(t *Tensor, v *view, start, n int64) []A {
		if v.regular && (v.step == 1 || n == 1) {
			return elements[A](t, start*v.step, n, 1)
		}
		return nil
	}
	return storage[A]{
		load: func(b *block[A], t *Tensor, v *view, start, n int64) []A {
			if in := place(t, v, start, n); in != nil {
				return in
			}
			gather(b.wide[:n], t, v, start)
			return b.wide[:n]
		},
		store: func(_ *block[A], t *Tensor, v *view, start int64, values []A) { scatter(values, t, v, start) },
		place: place,
	}
}

// plain is a storage that a Go conversion reads and writes.
func plain[S float32 | float64 | int8 | uint8 | int32 | int64, A accumulator]() storage[A] {
	return storage[A]{
		load: func(b *block[A], t *Tensor, v *view, start, n int64) []A {
			raw := rawOf[S](b, n)
			gather(raw, t, v, start)
			for i, value := range raw {
				b.wide[i] = A(value)
			}
			return b.wide[:n]
		},
		store: func(b *block[A], t *Tensor, v *view, start int64, values []A) {
			raw := rawOf[S](b, int64(len(values)))
			for i, value := range values {
				raw[i] = S(value)
			}
			scatter(raw, t, v, start)
		},
		place: nowhere[A],
	}
}

// narrow8 is a storage of 8-bit integers, which are only read.
func narrow8[A accumulator, S int8 | uint8](widen func([]float32, []S)) storage[A] {
	return storage[A]{load: widened[A](widen), store: plain[S, A]().store, place: nowhere[A]}
}

// widened loads through float32, a block at a time. Adjacent elements are converted where they lie.
func widened[A accumulator, S any](widen func([]float32, []S)) func(*block[A], *Tensor, *view, int64, int64) []A {
	return func(b *block[A], t *Tensor, v *view, start, n int64) []A {
		raw := rawOf[S](b, n)
		if v.regular && v.step == 1 {
			raw = elements[S](t, start, n, 1)
		} else {
			gather(raw, t, v, start)
		}
		if wide, ok := any(b.wide[:n]).([]float32); ok {
			widen(wide, raw)
			return b.wide[:n]
		}
		widen(b.half[:n], raw)
		for i, value := range b.half[:n] {
			b.wide[i] = A(value)
		}
		return b.wide[:n]
	}
}

// odd is x in 24 bits, as odd_of of vector.h.
func odd(x float64) float32 {
	const lost = 1<<29 - 1
	bits := math.Float64bits(x)
	return float32(math.Float64frombits((bits | (bits&lost + lost)) &^ lost))
}

// half is a storage of 16 bits, converted through float32.
func half[A accumulator, H float16 | bfloat16](widen func([]float32, []H), narrow func([]H, []float32)) storage[A] {
	return storage[A]{
		load: widened[A](widen),
		store: func(b *block[A], t *Tensor, v *view, start int64, values []A) {
			n := int64(len(values))
			narrowed, ok := any(values).([]float32)
			if !ok {
				narrowed = b.half[:n]
				for i, value := range values {
					narrowed[i] = odd(float64(value))
				}
			}
			if v.regular && v.step == 1 {
				narrow(elements[H](t, start, n, 1), narrowed)
				return
			}
			raw := rawOf[H](b, n)
			narrow(raw, narrowed)
			scatter(raw, t, v, start)
		},
		place: nowhere[A],
	}
}
