//go:build !race

package e2e

// raceDetector says whether this test, and so the program that it builds, looks for data races.
const raceDetector = false
