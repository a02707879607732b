//go:build !race

package coretest

// RaceDetector reports whether the race detector is on.
const RaceDetector = false
