//go:build race

package coretest

// RaceDetector leaves out the costly layouts, since every access to memory is dear under the
// detector.
const RaceDetector = true
