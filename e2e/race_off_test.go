//go:build !race

package e2e

// raceDetector says whether this test looks for data races, and so, by default, the programs that it builds.
const raceDetector = false
