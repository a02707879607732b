// Package num holds integer functions that the Go standard library lacks.
package num

import "math/bits"

// CeilDiv is n / by rounded up, for n >= 0 and by > 0.
func CeilDiv(n, by int64) int64 { return (n + by - 1) / by }

// Clamp is v limited to [low, high].
func Clamp(v, low, high int64) int64 { return max(low, min(v, high)) }

// Pow2 is the smallest power of two that is at least n.
func Pow2(n int64) int64 { return 1 << bits.Len64(uint64(max(n, 1)-1)) }

// Abs is the absolute value of v.
func Abs(v int64) int64 { return max(v, -v) }

// GCD is the greatest common divisor of a and b.
func GCD(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// Align16 is n rounded up to a multiple of 16.
func Align16(n int64) int64 { return CeilDiv(n, 16) * 16 }
