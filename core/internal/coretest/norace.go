//go:build !race

package coretest

import "github.com/sternway/sternway/core/internal/tensor"

// RaceDetector reports whether the race detector is on.
const RaceDetector = false

// Floats are the dtypes that tests of values go through.
var Floats = tensor.Floats
