//go:build !race

package e2e

// raceDetector says whether these tests, and so the programs that they build, look for data races.
const raceDetector = false
