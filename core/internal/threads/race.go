//go:build race

package threads

// raceDetector makes every run of several tasks use workers, whatever they cost: the race detector
// sees only goroutines that work.
const raceDetector = true
