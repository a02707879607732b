package rope_test

import (
	"math"

	"github.com/sternway/sternway/core/internal/coretest"
	tensorpkg "github.com/sternway/sternway/core/internal/tensor"
)

// definition is every element of an output in row-major order. A term's size includes what the
// rounding of an angle may come to.
func (c *ropeTrial) definition(memories map[string]*coretest.Memory, in string) []coretest.Term {
	d := c.d.WithDefaults()
	x := memories[in]
	values, r := x.Values(), *d.RotaryDim
	terms := make([]coretest.Term, len(values))
	tokens := map[string]int{"bhsd": 2, "bshd": 1, "thd": 0}[d.Layout]
	shape, own := x.Extents(), tensorpkg.Compact(x.Extents())
	for k := range values {
		at := int64(k) / own[len(own)-1] % shape[len(shape)-1]
		token, batch := int64(k)/own[tokens]%shape[tokens], int64(0)
		if d.Layout != "thd" {
			batch = int64(k) / own[0]
		}
		e := at - d.RotaryStart
		if e < 0 || e >= r {
			terms[k] = coretest.TermOf(values[k])
			continue
		}
		pair, second := e/2, e%2 != 0
		if d.Pairing == "half" {
			pair, second = e%(r/2), e >= r/2
		}
		pairStride, partnerOffset := int64(1), r/2
		if d.Pairing == "interleaved" {
			pairStride, partnerOffset = 2, 1
		}
		other := int64(k) + partnerOffset
		if second {
			other = int64(k) - partnerOffset
		}
		ci, si, cj, sj, blur := c.angle(memories, batch, token, pair, pairStride, partnerOffset)
		own, cross := ci, sj // dx_i
		if second {
			own, cross = cj, -si
		}
		if c.forward {
			if own, cross = ci, -si; second {
				own, cross = cj, sj
			}
		}
		a, b := own*values[k], cross*values[other]
		terms[k] = coretest.Term{Value: a + b, Size: math.Abs(a) + math.Abs(b) + blur*(math.Abs(values[k])+math.Abs(values[other]))}
	}
	return terms
}

func (c *ropeTrial) angle(memories map[string]*coretest.Memory, batch, token, pair, pairStride, partnerOffset int64) (ci, si, cj, sj, blur float64) {
	d := c.d.WithDefaults()
	position := float64(token)
	if p := memories["positions"]; p != nil {
		at := token
		if len(p.Extents()) == 2 && p.Extents()[0] > 1 {
			at += batch * d.SeqLen
		}
		position = p.Value(at)
	}
	if cos, sin := memories["cos"], memories["sin"]; cos != nil {
		shape := cos.Extents()
		columns, rows := shape[len(shape)-1], shape[len(shape)-2]
		at := int64(position) * columns
		if len(shape) == 3 && shape[0] > 1 {
			at += batch * rows * columns
		}
		i, j := at+pair, at+pair
		if columns == *d.RotaryDim {
			i = at + pair*pairStride
			j = i + partnerOffset
		}
		return cos.Value(i), sin.Value(i), cos.Value(j), sin.Value(j), 0
	}
	frequency := math.Pow(float64(*d.Base), -2*float64(pair)/float64(*d.RotaryDim))
	theta := position * frequency
	if blur = math.Abs(theta); d.Angle == "float32" {
		theta = float64(float32(position) * float32(frequency))
		blur = 0
	}
	if d.DType != tensorpkg.Float64 {
		blur *= coretest.Rounding(tensorpkg.Float64) / coretest.Rounding(tensorpkg.Float32)
	}
	s, cosine := math.Sincos(theta)
	return cosine, s, cosine, s, 8 * blur
}
