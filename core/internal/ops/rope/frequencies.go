package rope

import "math"

// Double is a number in two floats, high + low, to some 104 bits.
type Double struct{ High, low float64 }

// times rounds every product by a conversion: the Go specification lets a compiler fuse one with a sum otherwise, as it does on arm64
// and under GOAMD64=v3, where product + rest would no longer be what sum - product assumes.
func (a Double) times(b Double) Double {
	product := float64(a.High * b.High)
	rest := math.FMA(a.High, b.High, -product) + (float64(a.High*b.low) + float64(a.low*b.High))
	sum := product + rest
	return Double{sum, rest - (sum - product)}
}

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

// Powers are base^(-i/n) for i below n; high is the float64 that is nearest, but for one in 2^30: an error of one place, times a position
// of a million, would be one of the angle. They are the powers of one root w, w^n base = 1, which Newton's method makes of a float64.
func Powers(base float64, n int64) []Double {
	list := make([]Double, n)
	if base < 1e-250 || base > 1e250 { // no room for the products
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
