package scan

import (
	"math"

	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/tensor"
)

// arrange orders the other dimensions by falling density of dx, and joins those that walk like one in every operand.
func (d *deviceRun) arrange(args []tensor.Tensor) {
	var order []int
	for k, extent := range d.shape {
		if k == d.dim || extent == 1 {
			continue
		}
		at := len(order)
		for order = append(order, k); at > 0 && num.Abs(args[DxOperand].Strides[order[at-1]]) >= num.Abs(args[DxOperand].Strides[k]); at-- {
			order[at] = order[at-1]
		}
		order[at] = k
	}
	d.rows = d.RowCount()
	for i, operand := range d.operands {
		if len(d.shape) > 0 && (i != 1 || operand != 0) {
			d.step[i] = args[operand].ElementStrides()[d.dim]
		}
	}
	for _, k := range order {
		var stride [3]int64
		for i, operand := range d.operands {
			if i != 1 || operand != 0 {
				stride[i] = args[operand].ElementStrides()[k]
			}
		}
		if last := d.dims - 1; last >= 0 && d.joins(last, stride) {
			d.extent[last] *= d.shape[k]
			continue
		}
		d.extent[d.dims] = d.shape[k]
		for i := range stride {
			d.stride[i][d.dims] = stride[i]
		}
		d.dims++
	}
}

// joins reports that a slower dimension continues dimension k in every operand.
func (d *deviceRun) joins(k int, stride [3]int64) bool {
	for i := range stride {
		if stride[i] != d.stride[i][k]*d.extent[k] {
			return false
		}
	}
	return true
}

// reverseOrder makes positions run in scan order. Rows that lie end to end are mirrored together, so that they still do.
func (d *deviceRun) reverseOrder(g *Config) {
	for i := range d.operands {
		d.first[i] = (d.Length() - 1) * d.step[i]
		d.step[i] = -d.step[i]
		if g.Kernel == "rows" && d.dims == 1 {
			d.first[i] += (d.extent[0] - 1) * d.stride[i][0]
			d.stride[i][0] = -d.stride[i][0]
		}
	}
}

// dense are the flags that say how the operands lie: kDense, kLeads and kLines of cuda/scan.cuh.
func (d *deviceRun) dense(args []tensor.Tensor, g *Config) int64 {
	if d.code == "indices" || g.Kernel == "columns" || d.dims > 1 || d.rows > math.MaxUint32 {
		return 0
	}
	run := d.Length() // adjacent elements
	if g.Kernel == "rows" {
		run *= g.Width
	}
	leads := run%d.Vector() != 0
	switch {
	case leads && g.Kernel != "long" && !(g.Kernel == "row" && HasFastPath(d.code)):
		return 0
	case g.Kernel == "long" && d.lineAlignedLength() > run && d.begins(args, g, LineBytes/d.element.Size()):
		return FlagVectorized | FlagMisaligned | FlagLineAligned
	case !d.begins(args, g, bit(leads, d.Vector())):
		return 0
	}
	return FlagVectorized | bit(leads, FlagMisaligned) | bit(d.full(g), FlagFullWarps)
}

// full is kFull of cuda/scan.cuh.
func (d *deviceRun) full(g *Config) bool {
	return g.Kernel == "row" && d.step == [3]int64{1, 1, 1} && d.Length()%(32*d.ItemsPerThread(d.code)) == 0 && d.rows%g.Width == 0
}

// begins reports that whole aligned vectors make the rows of every operand; or, with a unit, that the first row begins with a vector, and
// each at the same place of such units in all of them.
func (d *deviceRun) begins(args []tensor.Tensor, g *Config, unit int64) bool {
	place := func(i int) (first, stride int64) { // of the lowest element of the first row, or vector
		first, adjacent := d.first[i], d.Vector()
		if unit > 0 {
			adjacent = d.Length()
		}
		if d.step[i] < 0 {
			first -= adjacent - 1
		}
		return int64(args[d.operands[i]].Data) + first*d.element.Size(), d.stride[i][0]
	}
	to, apart := place(2)
	for i, operand := range d.operands {
		repeats := i == 0 && d.step[i] == 0 && (g.Kernel != "rows" || d.stride[i][0] == 0) // a number of dy is all that a team reads
		if repeats || i == 1 && operand == 0 {
			continue
		}
		from, stride := place(i)
		aligned := from%16 == 0
		switch {
		case unit > 0:
			aligned = aligned && (from-to)%(unit*d.element.Size()) == 0
			if d.dims > 0 { // vectors at the ends of a row hold memory of its neighbours; nothing is ahead of the first, nor looked at behind the last
				aligned = aligned && stride >= d.Length() && (stride-apart)%unit == 0
			}
		case d.dims == 0:
		case g.Kernel == "rows":
			aligned = aligned && stride == d.Length()*d.step[i]
		default:
			aligned = aligned && stride%d.Vector() == 0
		}
		if num.Abs(d.step[i]) != 1 || !aligned {
			return false
		}
	}
	return true
}

// columnsContiguous reports that columns lie side by side in whole aligned vectors in every operand.
func (d *deviceRun) columnsContiguous(_ string, args []tensor.Tensor) bool {
	if d.code == "indices" || d.dims == 0 || d.extent[0]%d.Vector() != 0 {
		return false
	}
	for i, operand := range d.operands {
		if i == 1 && operand == 0 {
			continue
		}
		whole := args[operand].Data%16 == 0 && d.stride[i][0] == 1 && d.step[i]%d.Vector() == 0
		for k := 1; k < d.dims; k++ {
			whole = whole && d.stride[i][k]%d.Vector() == 0
		}
		if !whole {
			return false
		}
	}
	return true
}

// sameDirection reports that rows of all operands run the same way, and lie so that whole vectors of them can be read.
func (d *deviceRun) sameDirection(kernel string, args []tensor.Tensor) bool {
	for _, step := range d.step[:2] {
		if step != 0 && step != d.step[2] {
			return false
		}
	}
	return d.dense(args, &Config{Kernel: kernel}) != 0
}
