//go:build 386 || amd64 || arm || arm64 || loong64 || mips64le || mipsle || ppc64le || riscv64 || wasm

package wire

import (
	"unsafe"

	"gonum.org/v1/gonum/blas/blas32"
)

// FloatBytes is the memory of f as the wire carries it, shared, not copied.
func FloatBytes(f []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(f))), len(f)*4)
}

// Finite reports whether f has no NaN and no infinity.
func Finite(f []float32) bool {
	n, _, isFinite := sumMost(0, FloatBytes(f))
	return isFinite && finitePlain(f[n/4:])
}

// CopyFinite copies src to dst, of the same length, and reports whether the copy has no NaN and no infinity. src may be in
// memory that another process changes.
func CopyFinite(dst, src []float32) bool {
	n, isFinite := copyMost(FloatBytes(dst), FloatBytes(src))
	copy(dst[n/4:], src[n/4:])
	return isFinite && finitePlain(dst[n/4:])
}

// finitePlain is Finite on any processor. The sum of squares is finite only if
// every element is; it may overflow for large ones, and only then they are
// looked at one by one.
func finitePlain(f []float32) bool {
	vector := blas32.Vector{N: len(f), Data: f, Inc: 1}
	sum := blas32.Dot(vector, vector)
	return sum-sum == 0 || FirstNotFinite(f) < 0
}

// FirstNotFinite is the index of the first NaN or infinity in f, or -1.
func FirstNotFinite(f []float32) int {
	for i, v := range f {
		if v-v != 0 {
			return i
		}
	}
	return -1
}
