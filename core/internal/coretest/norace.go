//go:build !race

package coretest

const RaceDetector = false
