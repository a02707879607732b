package cpu

import (
	"math"
	"sync/atomic"

	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/sternway/sternway/core/internal/threads"
)

// Bounds are the bounds of the sequences that are packed along a dimension, in host memory:
// sequence k has the positions At(k) to At(k+1) - 1.
type Bounds struct {
	Narrow []int32
	Wide   []int64 // nil: the bounds are int32
	Stride int64
	Count  int64 // number of sequences
}

// BoundsOf reads an operand of at least one int32 or int64; nil if it is left out.
func BoundsOf(t *tensor.Tensor) *Bounds {
	if !t.Given() {
		return nil
	}
	b := &Bounds{Stride: t.Strides[0], Count: t.Shape[0] - 1}
	switch {
	case b.Stride < 1: // reversed, or one number
		b.Wide = make([]int64, t.Shape[0])
		for k := range b.Wide {
			one := *t
			one.Data += uintptr(int64(k) * b.Stride * t.DType.Size())
			one.Strides[0] = 1
			b.Wide[k] = (BoundsOf(&one)).At(0)
		}
		b.Stride = 1
	case t.DType == tensor.Int32:
		b.Narrow = Elements[int32](t, 0, t.Shape[0], b.Stride)
	default:
		b.Wide = Elements[int64](t, 0, t.Shape[0], b.Stride)
	}
	return b
}

// At is bound k.
func (b *Bounds) At(k int64) int64 {
	if b.Wide != nil {
		return b.Wide[k*b.Stride]
	}
	return int64(b.Narrow[k*b.Stride])
}

// FirstWrong is the first bound that is not 0, is less than the bound before it, or exceeds the
// length of a row; the last bound if that is not the length. -1: all are right. If the row is cut
// out of a longer one, the first bound may be less than 0, and others may exceed the length.
func (b *Bounds) FirstWrong(length int64, isCut bool) int64 {
	least, most := int64(0), length
	if isCut {
		least, most = math.MinInt64, math.MaxInt64
	}
	var first atomic.Int64
	first.Store(math.MaxInt64)
	start := func() (*Bounds, func()) { return b, func() {} }
	threads.Run(nil, num.CeilDiv(b.Count+1, Grain), 1, start, func(_ *Bounds, task int64) {
		k, end := task*Grain, min((task+1)*Grain, b.Count+1)
		for wrong := b.firstWrong(k, end, least, most); wrong < end; {
			if before := first.Load(); wrong >= before || first.CompareAndSwap(before, wrong) {
				break
			}
		}
	})
	switch {
	case first.Load() < math.MaxInt64:
		return first.Load()
	case b.At(b.Count) < length:
		return b.Count
	}
	return -1
}

// firstWrong is the first of the bounds k to end-1 that is less than the bound before it, or not
// between two numbers, or is bound 0 and exceeds 0; `end` if there is none.
func (b *Bounds) firstWrong(k, end, least, most int64) int64 {
	if k > 0 {
		least = b.At(k - 1)
	} else if b.At(0) > 0 {
		return 0
	}
	for ; k < end; k++ {
		bound := b.At(k)
		if bound < least || bound > most {
			break
		}
		least = bound
	}
	return k
}
