//go:build race

package coretest

// raceDetector leaves out the costly layouts, since every access to memory is dear under the detector.
const RaceDetector = true
