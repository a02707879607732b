// Package num is integer arithmetic that Go's standard library lacks: division that rounds up, powers of two, greatest common divisors.
package num

import "math/bits"

func CeilDiv(n, by int64) int64 { return (n + by - 1) / by }

func Clamp(v, low, high int64) int64 { return max(low, min(v, high)) }

// Pow2 is the smallest power of two that is at least n.
func Pow2(n int64) int64 { return 1 << bits.Len64(uint64(max(n, 1)-1)) }

func Abs(v int64) int64 { return max(v, -v) }

func GCD(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

func Align16(n int64) int64 { return CeilDiv(n, 16) * 16 }
