package gpu

// Gradients of operands that were broadcast. The kernels of a scan store their terms in the
// workspace, contiguous and as accumulators, and scan_sum adds them.

import (
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/ops/scan/operand"
	"github.com/sternway/sternway/core/internal/tensor"
)

// Division of sums among CTAs.
const (
	sumCTAsPerSM     = 4   // CTAs per SM below which sums are divided into chunks
	minTermsOfThread = 16  // terms that a thread adds, at least, in a sum that is divided
	maxTermsOfThread = 256 // at most, which bounds the rounding error
)

// Sum is the gradient of an operand that was broadcast.
type Sum struct {
	Operand int     // number of the gradient in the arguments of a run
	Shape   []int64 // of the gradient

	terms, partial int64 // where terms and partial sums begin in the workspace [accumulators]
	division       sumDivision
}

// sumDivision says how CTAs share sums.
type sumDivision struct {
	kept, reduced int64 // sums; terms of a sum
	across        int64 // sums of a CTA, a power of 2
	keptIsInner   bool  // terms of different sums are adjacent
	chunk, chunks int64 // terms of a sum that a CTA adds; their number
}

// PlaceSums places the terms and partial sums of gradients behind the first bytes of the workspace,
// and returns the size of all [bytes].
func PlaceSums(sums []Sum, shape []int64, bytes, accumulatorBytes, numSMs int64) int64 {
	place := func(count int64) (first int64) {
		first = num.CeilDiv(bytes, launch.WorkspaceAlignment) * launch.WorkspaceAlignment
		bytes = first + count*accumulatorBytes
		return first / accumulatorBytes
	}
	terms, _ := tensor.Product(shape)
	for i := range sums {
		s := &sums[i]
		s.division = divideSum(contiguousTerms(shape, s.Shape), numSMs)
		s.terms = place(terms)
		if d := &s.division; d.chunks > 1 {
			s.partial = place(d.kept * d.chunks)
		}
	}
	return bytes
}

// termDim is a dimension of terms, of more than one element.
type termDim struct {
	dim            int // of the scan
	extent, stride int64
	isReduced      bool
}

// contiguousTerms are the dimensions of contiguous terms of a gradient, fastest first.
func contiguousTerms(shape, own []int64) (dims []termDim) {
	strides := tensor.Compact(shape)
	for d := len(shape) - 1; d >= 0; d-- {
		if shape[d] != 1 {
			dims = append(dims, termDim{d, shape[d], strides[d], isReduced(shape, own, d)})
		}
	}
	return dims
}

// isReduced reports whether dimension d of a shape is summed for an operand of another shape.
func isReduced(shape, own []int64, d int) bool {
	lead := len(shape) - len(own)
	return d < lead || own[d-lead] != shape[d]
}

// divideSum divides the sums of terms among CTAs.
func divideSum(dims []termDim, numSMs int64) sumDivision {
	d := sumDivision{kept: 1, reduced: 1, keptIsInner: len(dims) > 0 && !dims[0].isReduced}
	for k := range dims {
		if dims[k].isReduced {
			d.reduced *= dims[k].extent
		} else {
			d.kept *= dims[k].extent
		}
	}
	var down int64 // threads of a sum
	if d.keptIsInner {
		d.across = min(num.Pow2(max(1, d.kept)), warpThreads)
		down = num.Clamp(num.Pow2(num.CeilDiv(d.reduced, minTermsOfThread)), 1, launch.BlockThreads/d.across)
	} else {
		down = num.Clamp(num.Pow2(num.CeilDiv(d.reduced, 8)), min(num.Pow2(max(1, d.reduced)), warpThreads), launch.BlockThreads)
	}
	d.across = launch.BlockThreads / down
	ctas := num.CeilDiv(d.kept, d.across)
	d.chunks = max(1, min(num.CeilDiv(sumCTAsPerSM*numSMs, max(1, ctas)), d.reduced/(down*minTermsOfThread)))
	d.chunks = max(d.chunks, num.CeilDiv(d.reduced, down*maxTermsOfThread))
	d.chunk = num.CeilDiv(num.CeilDiv(d.reduced, d.chunks), down) * down
	d.chunks = max(1, num.CeilDiv(d.reduced, max(1, d.chunk)))
	return d
}

// ofChunks is the division of the launch that adds the partial sums of chunks.
func (d *sumDivision) ofChunks() sumDivision {
	last := sumDivision{kept: d.kept, reduced: d.chunks, keptIsInner: true, chunk: d.chunks, chunks: 1}
	down := num.Clamp(num.Pow2(num.CeilDiv(d.chunks, 8)), 1, launch.BlockThreads)
	last.across = launch.BlockThreads / down
	return last
}

// storeTerms puts the terms of the sums of a run in the place of their gradients.
func (r *run) storeTerms() {
	for i := range r.Sums {
		s := &r.Sums[i]
		if t := &r.args[s.Operand]; t.Given() {
			r.sums = append(r.sums, sumOfRun{Sum: *s, to: *t, dims: contiguousTerms(r.Shape, s.Shape)})
			*t = tensor.Tensor{Data: r.workspace, DType: t.DType.Accumulator(), Device: t.Device, NDim: int32(len(r.Shape)), Present: 1}
			copy(t.Shape[:], r.Shape)
			copy(t.Strides[:], tensor.Compact(r.Shape))
		}
	}
}

// sumOfRun is a sum, the gradient that takes it, and the dimensions of its terms, fastest first.
type sumOfRun struct {
	Sum
	to        tensor.Tensor
	dims      []termDim
	hasGroups bool // terms are sums of groups of elements
}

// sumGroups lets a kernel sum the terms of da along rows, if da is and the kernel is able to: a
// warp stores one number of its row, and a thread of column_tiled one of each of its columns.
func (r *run) sumGroups(c *Config) {
	s := r.termsOf(operand.LinearDA)
	if !r.problem.Kind.hasWide || s == nil || c.RowsPerWarp > 0 || r.problem.Length == 1 || !isReduced(r.Shape, s.Shape, r.Dim) {
		return
	}
	o, stride := &r.operands, int64(1)
	dims := []termDim{}
	for _, d := range fastestFirst(r.Shape, r.Dim, r.args[o.numbers[result]].Strides[:]) {
		dims = append(dims, termDim{d, r.Shape[d], stride, isReduced(r.Shape, s.Shape, d)})
		stride *= r.Shape[d]
	}
	groups := c.groups()
	dims = append(dims, termDim{r.Dim, groups, stride, true})
	division := divideSum(dims, r.problem.Device.NumSMs)
	if stride*groups+division.kept*division.chunks > r.problem.Rows*r.problem.Length { // the terms take less
		return
	}
	s.dims, s.division, s.partial, s.hasGroups = dims, division, s.terms+stride*groups, true
	o.sumsSecond, o.first[second], o.step[second], stride = true, s.terms, stride, 1
	for k := range o.dims {
		o.stride[second][k] = stride
		stride *= o.extent[k]
	}
}

// groups is the number of groups of elements of a row whose terms are summed: those of a warp, or
// of a thread of column_tiled.
func (c *Config) groups() int64 {
	switch tiles := c.Splits * c.TilesPerSplit; {
	case c.ThreadsDown > 0:
		return tiles * c.ThreadsDown
	case c.WarpsPerRow > 0:
		return c.WarpsPerRow
	default:
		return tiles * c.Block / warpThreads
	}
}

// termsOf is the sum whose terms are the operand of a number; nil: it is an operand of the caller.
func (r *run) termsOf(number int) *sumOfRun {
	for i := range r.sums {
		if r.sums[i].Operand == number {
			return &r.sums[i]
		}
	}
	return nil
}

// addTerms launches scan_sum for each sum of the run.
func (r *run) addTerms() error {
	for i := range r.sums {
		s := &r.sums[i]
		d := s.division
		if d.chunks > 1 {
			if err := r.launchSum(s, &d, false); err != nil {
				return err
			}
			d = d.ofChunks()
		}
		if err := r.launchSum(s, &d, true); err != nil {
			return err
		}
	}
	return nil
}

// launchSum launches scan_sum: of terms, or of the partial sums of their chunks.
func (r *run) launchSum(s *sumOfRun, d *sumDivision, isLast bool) error {
	r.queue.Begin()
	a := launch.Append[SumArgs](r.queue)
	r.queue.SetAddress(&a.workspace, launch.WorkspaceOperand, r.workspace)
	a.terms, a.partial = s.terms, s.partial
	if isLast {
		r.queue.SetAddress(&a.to, s.Operand, s.to.Data)
	}
	a.kept, a.reduced, a.chunk, a.chunks, a.across = d.kept, d.reduced, d.chunk, d.chunks, d.across
	a.keptIsInner = flagIf(d.keptIsInner, 1)
	a.setDims(s, len(r.Shape)-len(s.Shape))
	if isLast && s.division.chunks > 1 {
		a.terms = s.partial
		a.setChunks(d)
	}
	if d.kept == 0 {
		return nil
	}
	return r.queue.Submit(len(r.queue.Kernels)-LastKernels-1, num.CeilDiv(d.kept, d.across)*d.chunks, launch.BlockThreads)
}

// setDims describes terms. Dimensions that are one in the terms and the sums are merged. The
// gradient lacks the first `lead` dimensions.
func (a *SumArgs) setDims(s *sumOfRun, lead int) {
	to := s.to.ElementStrides()
	for _, d := range s.dims {
		if d.isReduced {
			if k := a.reducedDims - 1; k >= 0 && d.stride == a.reducedStride[k]*a.reducedExtent[k] {
				a.reducedExtent[k] *= d.extent
				continue
			}
			a.reducedExtent[a.reducedDims], a.reducedStride[a.reducedDims] = d.extent, d.stride
			a.reducedDims++
			continue
		}
		toStride := to[d.dim-lead]
		if k := a.keptDims - 1; k >= 0 && d.stride == a.keptStride[k]*a.keptExtent[k] && toStride == a.toStride[k]*a.keptExtent[k] {
			a.keptExtent[k] *= d.extent
			continue
		}
		a.keptExtent[a.keptDims], a.keptStride[a.keptDims], a.toStride[a.keptDims] = d.extent, d.stride, toStride
		a.keptDims++
	}
}

// setChunks makes the terms those of partial sums, [chunk][kept].
func (a *SumArgs) setChunks(d *sumDivision) {
	stride := int64(1)
	for k := range a.keptDims {
		a.keptStride[k] = stride
		stride *= a.keptExtent[k]
	}
	a.reducedDims, a.reducedExtent[0], a.reducedStride[0] = 1, d.reduced, d.kept
}
