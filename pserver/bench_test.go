package pserver_test

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
	"gonum.org/v1/gonum/blas/blas32"

	"trainmaster/pserver"
	"trainmaster/pserver/optimizer"
	"trainmaster/trainer/params"
)

// cpuSeconds is what this process has used, client and server alike.
func cpuSeconds(b *testing.B) float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// The model of the benchmarks: 100 MiB.
const modelBlocks, blockElements = 100, 1 << 18

// measure times a step that moves the model there and back; both directions count as bytes.
func measure(b *testing.B, step func()) {
	step() // the connection's buffers and the pool grow
	const bytes = 2 * 4 * modelBlocks * blockElements
	b.SetBytes(bytes)
	began := cpuSeconds(b)
	for b.Loop() {
		step()
	}
	b.ReportMetric((cpuSeconds(b)-began)/float64(b.N)/(bytes/1e9), "cpu-s/GB")
}

// BenchmarkPushPull moves gradients to one shard and parameters back. The limit
// is what the same takes in memory: each direction copied twice, through a
// piece that stays in the cache, and SGD.
func BenchmarkPushPull(b *testing.B) {
	values, grads := make([]float32, modelBlocks*blockElements), make([]float32, modelBlocks*blockElements)
	for i := range grads {
		grads[i] = 1e-3
	}
	b.Run("limit", func(b *testing.B) { measure(b, inMemory(values, grads)) })
	for _, network := range []string{"unix", "tcp"} {
		for _, o := range []params.Optimizer{plainSGD, heavy, {Kind: optimizer.Adam}} {
			b.Run(fmt.Sprintf("%s/%v", network, o.Kind), func(b *testing.B) {
				cfg := pserver.Config{DataSocket: pserver.SocketOff}
				if network == "unix" {
					cfg.DataSocket = socketFolder(b)
				}
				c := connect(b, startServers(b, 1, cfg), params.Config{Mode: params.Async, Optimizer: o})
				model := func(data []float32) []params.Tensor {
					return []params.Tensor{{Name: "w", Shape: []int{modelBlocks, blockElements}, Data: data}}
				}
				mustInit(b, c, model(values))
				step := uint64(0)
				measure(b, func() {
					step++
					if _, err := c.PushPull(b.Context(), step, 1, model(grads), model(values)); err != nil {
						b.Fatal(err)
					}
				})
			})
		}
	}
}

// inMemory is a step without a wire.
func inMemory(values, grads []float32) (step func()) {
	held, block, piece := make([]float32, len(values)), make([]float32, blockElements), make([]float32, 1<<14)
	twice := func(dst, src []float32) {
		for lo := 0; lo < len(src); lo += len(piece) {
			copy(piece, src[lo:])
			copy(dst[lo:], piece)
		}
	}
	vector := func(f []float32) blas32.Vector { return blas32.Vector{N: len(f), Data: f, Inc: 1} }
	return func() {
		for lo := 0; lo < len(held); lo += blockElements {
			hi := lo + blockElements
			twice(block, grads[lo:hi])
			blas32.Axpy(-1e-3, vector(block), vector(held[lo:hi]))
			twice(values[lo:hi], held[lo:hi])
		}
	}
}
