package embedding

import (
	"sync/atomic"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/sternway/sternway/core/internal/threads"
)

// Strided vectors of integers, and parallel loops over them. Both families of the package use them.

// stridedVec is an operand of rank 1: element k is in[start + k*step].
type stridedVec[I int32 | int64] struct {
	in          []I
	start, step int64
}

// stridedOf is an operand of rank 1 as a stridedVec.
func stridedOf[I int32 | int64](t *tensor.Tensor) stridedVec[I] {
	n, step := t.Shape[0], t.Strides[0]
	switch {
	case n == 0:
		return stridedVec[I]{}
	case step < 0:
		return stridedVec[I]{cpu.Elements[I](t, (n-1)*step, n, -step), (n - 1) * -step, step}
	}
	return stridedVec[I]{cpu.Elements[I](t, 0, n, step), 0, step}
}

// at is element k.
func (l stridedVec[I]) at(k int64) int64 { return int64(l.in[l.start+k*l.step]) }

// set stores element k.
func (l stridedVec[I]) set(k int64, v I) { l.in[l.start+k*l.step] = v }

// integersOf returns a function that reads element k of an int32 or int64 operand of rank 1.
func integersOf(t *tensor.Tensor) func(k int64) int64 {
	if t.DType == tensor.Int32 {
		return stridedOf[int32](t).at
	}
	return stridedOf[int64](t).at
}

// readIntegers copies the elements of an operand of rank 1 from index first on; negative ones
// become noRow.
func readIntegers[N number](out []N, t *tensor.Tensor, first int64) {
	if t.DType == tensor.Int32 {
		copyStrided(out, stridedOf[int32](t), first)
	} else {
		copyStrided(out, stridedOf[int64](t), first)
	}
}

// copyStrided is readIntegers for one element type.
func copyStrided[N number, I int32 | int64](out []N, l stridedVec[I], first int64) {
	if l.step == 1 {
		in := l.in[first:][:len(out)]
		for k := range out {
			out[k] = N(max(in[k], -1))
		}
		return
	}
	for k := range out {
		out[k] = N(max(l.at(first+int64(k)), -1))
	}
}

// asVector is a matrix as one vector in row-major order, and whether its strides allow that.
func asVector(t *tensor.Tensor) (tensor.Tensor, bool) {
	all := *t
	all.NDim, all.Shape[0], all.Strides[0] = 1, t.Shape[0]*t.Shape[1], t.Strides[1]
	return all, t.Given() && t.Strides[0] == t.Shape[1]*t.Strides[1]
}

// rowOf is row k of a matrix.
func rowOf(t *tensor.Tensor, k int64) tensor.Tensor {
	row := *t
	row.NDim, row.Shape[0], row.Strides[0] = 1, t.Shape[1], t.Strides[1]
	row.Data += uintptr(k * t.Strides[0] * t.DType.Size())
	return row
}

// firstOutside finds the first element outside of [low, high): its index and value; nil if there is
// none.
func firstOutside(t *tensor.Tensor, low, high int64) (int64, *int64) {
	n, found := t.Shape[0], atomic.Int64{}
	found.Store(n)
	parallelFor(n, 1<<14, 1<<15, func(first, end int64) {
		at := int64(-1)
		if t.DType == tensor.Int32 {
			at = outside(stridedOf[int32](t), first, end, low, high)
		} else {
			at = outside(stridedOf[int64](t), first, end, low, high)
		}
		for old := found.Load(); at >= 0 && at < old && !found.CompareAndSwap(old, at); {
			old = found.Load()
		}
	})
	at := found.Load()
	if at == n {
		return 0, nil
	}
	v := integersOf(t)(at)
	return at, &v
}

// outside is the index of the first of the elements first..end-1 outside of [low, high), or -1.
func outside[I int32 | int64](l stridedVec[I], first, end, low, high int64) int64 {
	if l.step == 1 { // one comparison per element and no bounds checks
		for k, v := range l.in[first:end] {
			if uint64(int64(v)-low) >= uint64(high-low) {
				return first + int64(k)
			}
		}
		return -1
	}
	for k := first; k < end; k++ {
		if v := l.at(k); v < low || v >= high {
			return k
		}
	}
	return -1
}

// parallelForWorkers is parallelFor with the scratch of a worker.
func parallelForWorkers[N number](n, size, grain int64, body func(w *bagWorker[N], first, end int64)) {
	pool := &bagPools[bitsOf[N]()/64].workers
	threads.Run(nil, num.CeilDiv(n, size), max(1, grain/size), func() (*bagWorker[N], func()) {
		w := fromPool[bagWorker[N]](pool)
		return w, func() { pool.Put(w) }
	}, func(w *bagWorker[N], task int64) { body(w, task*size, min(n, (task+1)*size)) })
}

// parallelFor calls body for ranges of size indices out of n, in parallel if n exceeds grain.
func parallelFor(n, size, grain int64, body func(first, end int64)) {
	parallelForWorkers(n, size, grain, func(_ *bagWorker[uint32], first, end int64) { body(first, end) })
}
