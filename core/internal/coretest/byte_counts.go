package coretest

import (
	"github.com/sternway/sternway/core/internal/tensor"
)

// ByteCounts counts how often a view's elements cover each byte.
func ByteCounts(t *tensor.Tensor) map[int64]int {
	counts := map[int64]int{}
	odometer(t.Extents(), t.ElementStrides(), func(offset int64) {
		for b := range t.DType.Size() {
			counts[int64(t.Data)+offset*t.DType.Size()+b]++
		}
	})
	return counts
}
