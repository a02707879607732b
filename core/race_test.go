//go:build race

package core

// raceDetector leaves out the costly layouts, since every access to memory is dear under the detector.
const raceDetector = true
