//go:build !amd64

package wire

func narrowMost([]byte, []float32) (n int, isFinite bool) { return 0, true }
func widenMost([]float32, []byte) (n int, isFinite bool)  { return 0, true }
