//go:build !race

package threads

// raceDetector reports whether the race detector is on.
const raceDetector = false
