package tensor

// This file decides whether two strided views share memory.

// axis is one dimension of a view in bytes, with a positive stride.
type axis struct{ extent, stride int64 }

// axes are the dimensions of t with an extent above 1 and a stride other than 0, largest stride
// first, and the lowest address of t. Dimensions of stride 0 repeat the same bytes and are left
// out.
func axes(t *Tensor) (list [MaxRank]axis, n int, low int64) {
	size := t.DType.Size()
	low = int64(t.Data)
	for i, extent := range t.Extents() {
		stride := t.Strides[i] * size
		if extent == 1 || stride == 0 {
			continue
		}
		if stride < 0 {
			low += stride * (extent - 1)
			stride = -stride
		}
		at := n
		for at > 0 && list[at-1].stride < stride {
			list[at] = list[at-1]
			at--
		}
		list[at] = axis{extent, stride}
		n++
	}
	return list, n, low
}

// width is the number of bytes from the first to the last byte of a view with these axes.
func width(list []axis, size int64) int64 {
	w := size
	for _, a := range list {
		w += (a.extent - 1) * a.stride
	}
	return w
}

// SelfOverlaps reports whether two indices of t may address the same byte: whether a stride is 0,
// or smaller than the bytes that the faster dimensions span. It may err towards true.
func SelfOverlaps(t *Tensor) bool {
	if t.Empty() {
		return false
	}
	for i, extent := range t.Extents() {
		if extent > 1 && t.Strides[i] == 0 {
			return true
		}
	}
	list, n, _ := axes(t)
	for i := 0; i < n; i++ {
		if list[i].stride < width(list[i+1:n], t.DType.Size()) {
			return true
		}
	}
	return false
}

// Disjoint reports whether a and b certainly share no byte. It recognizes views of one buffer that
// interleave regularly, such as the columns or the channels of a matrix. Where it cannot tell, it
// returns false.
func Disjoint(a, b *Tensor) bool {
	if a.Empty() || b.Empty() {
		return true
	}
	axesA, nA, lowA := axes(a)
	axesB, nB, lowB := axes(b)
	return disjointBytes(axesA[:nA], axesB[:nB], a.DType.Size(), b.DType.Size(), lowB-lowA)
}

// disjointBytes reports whether two views are provably disjoint; b begins offset bytes after a. If
// the outermost strides are equal and the inner axes fit within that stride, only neighbouring
// periods can overlap, and the test recurses to the inner axes.
func disjointBytes(a, b []axis, sizeA, sizeB, offset int64) bool {
	if offset >= width(a, sizeA) || -offset >= width(b, sizeB) {
		return true
	}
	if len(a) == 0 || len(b) == 0 || a[0].stride != b[0].stride {
		return false
	}
	period := a[0].stride
	if width(a[1:], sizeA) > period || width(b[1:], sizeB) > period {
		return false
	}
	phase := ((offset % period) + period) % period
	return disjointBytes(a[1:], b[1:], sizeA, sizeB, phase) && disjointBytes(a[1:], b[1:], sizeA, sizeB, phase-period)
}
