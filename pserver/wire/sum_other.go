//go:build !amd64

package wire

// sumMost sums nothing: the plain code does.
func sumMost(c Checksum, _ []byte) (n int, sum Checksum, isFinite bool) { return 0, c, true }

// copyMost copies nothing.
func copyMost([]byte, []byte) (n int, isFinite bool) { return 0, true }
