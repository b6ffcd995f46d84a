//go:build !amd64

package floats

// sumMost sums nothing: the plain code does.
func sumMost(c uint32, _ []byte) (n int, sum uint32, isFinite bool) { return 0, c, true }

// copyMost copies nothing.
func copyMost([]byte, []byte) (n int, isFinite bool) { return 0, true }
