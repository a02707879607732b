//go:build race

package coretest

import "github.com/sternway/sternway/core/internal/tensor"

// RaceDetector leaves out the costly layouts, since every access to memory is dear under the
// detector.
const RaceDetector = true

// Floats leaves out dtypes that access memory as these do.
var Floats = []tensor.DType{tensor.Float32, tensor.BFloat16}
