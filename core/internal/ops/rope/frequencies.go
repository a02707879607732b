package rope

import "math"

// This file computes the frequencies of RoPE in double-double arithmetic.

// Double is a double-double number, High + low, with about 104 bits.
type Double struct{ High, low float64 }

// times is the double-double product. Conversions round each product, because the Go specification
// otherwise allows a compiler to fuse it with a sum, as on arm64 and with GOAMD64=v3; the error
// term would then be wrong.
func (a Double) times(b Double) Double {
	product := float64(a.High * b.High)
	rest := math.FMA(a.High, b.High, -product) + (float64(a.High*b.low) + float64(a.low*b.High))
	sum := product + rest
	return Double{sum, rest - (sum - product)}
}

// power is a^n by repeated squaring.
func (a Double) power(n int64) Double {
	result := Double{High: 1}
	for ; n > 0; n >>= 1 {
		if n&1 != 0 {
			result = result.times(a)
		}
		a = a.times(a)
	}
	return result
}

// Powers are base^(-i/n) for i below n. They need more precision than float64 operations give: an
// error of one ulp is multiplied by the position. They are the powers of the root w with w^n base =
// 1, which one step of Newton's method refines from float64 to double-double. High is the nearest
// float64 except in about one of 2^30 cases.
func Powers(base float64, n int64) []Double {
	list := make([]Double, n)
	if base < 1e-250 || base > 1e250 { // no scratch for the products
		for i := range list {
			list[i].High = math.Pow(base, -float64(i)/float64(n))
		}
		return list
	}
	root := Double{High: math.Pow(base, -1/float64(max(n, 1)))}
	one := root.power(n).times(Double{High: base})
	root.low = root.High * (((1 - one.High) - one.low) / float64(max(n, 1)))
	at := Double{High: 1}
	for i := range list {
		list[i] = at
		at = at.times(root)
	}
	return list
}
