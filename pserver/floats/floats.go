//go:build 386 || amd64 || arm || arm64 || loong64 || mips64le || mipsle || ppc64le || riscv64 || wasm

// Package floats implements the passes over float32 elements that connections, tables and blocks share: their memory as bytes, checks for
// NaN and infinities, copies, and sums. On amd64 with AVX-512 a pass reads each element once.
//
// The memory of []float32 is what frames and files have. The package therefore builds on little-endian machines only.
package floats

import (
	"hash/crc32"
	"unsafe"

	"gonum.org/v1/gonum/blas/blas32"
)

// Bytes is the memory of f, shared, not copied.
func Bytes(f []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(f))), len(f)*4)
}

// Finite reports whether f has no NaN and no infinity.
func Finite(f []float32) bool {
	n, _, isFinite := sumMost(0, Bytes(f))
	return isFinite && finitePlain(f[n/4:])
}

// CopyFinite copies src to dst, of the same length, and reports whether the copy has no NaN and no infinity. src may be in
// memory that another process changes.
func CopyFinite(dst, src []float32) bool {
	n, isFinite := copyMost(Bytes(dst), Bytes(src))
	copy(dst[n/4:], src[n/4:])
	return isFinite && finitePlain(dst[n/4:])
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Sum adds bytes to a CRC-32C.
func Sum(crc uint32, p []byte) uint32 {
	n, crc, _ := sumMost(crc, p)
	return crc32.Update(crc, castagnoli, p[n:])
}

// SumFinite adds the memory of f to a CRC-32C, and reports in the same pass whether f has no NaN and no infinity.
func SumFinite(crc uint32, f []float32) (sum uint32, isFinite bool) {
	n, crc, isFinite := sumMost(crc, Bytes(f))
	f = f[n/4:]
	return crc32.Update(crc, castagnoli, Bytes(f)), isFinite && finitePlain(f)
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
