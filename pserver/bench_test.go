package pserver_test

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
	"gonum.org/v1/gonum/blas/blas32"

	"trainmaster/pserver"
	"trainmaster/pserver/optimizer"
	"trainmaster/trainer/params"
)

// cpuSeconds is what processes have used so far.
func cpuSeconds(b *testing.B, pids []int) (seconds float64) {
	for _, pid := range pids {
		var used unix.Timespec
		if err := unix.ClockGettime(int32(^pid<<3|2), &used); err != nil { // as clock_getcpuclockid(3) makes it
			b.Fatal(err)
		}
		seconds += float64(used.Nano()) / 1e9
	}
	return seconds
}

// The model of the benchmarks: 100 MiB.
const modelBlocks, blockElements = 100, 1 << 18

// measure times a step that moves the model there and back, and counts what it takes of this process and of others; both
// directions count as bytes.
func measure(b *testing.B, step func(), others ...int) {
	pids := append(others, os.Getpid())
	step() // the connection's buffers and the pool grow
	const bytes = 2 * 4 * modelBlocks * blockElements
	b.SetBytes(bytes)
	began := cpuSeconds(b, pids)
	for b.Loop() {
		step()
	}
	b.ReportMetric((cpuSeconds(b, pids)-began)/float64(b.N)/(bytes/1e9), "cpu-s/GB")
}

// BenchmarkPushPull moves gradients to one shard, in this process or apart from
// it, and parameters back. The limit is what the same takes in memory: each
// direction copied twice, through a piece that stays in the cache, and SGD.
func BenchmarkPushPull(b *testing.B) {
	values, grads := make([]float32, modelBlocks*blockElements), make([]float32, modelBlocks*blockElements)
	for i := range grads {
		grads[i] = 1e-3
	}
	b.Run("limit", func(b *testing.B) { measure(b, inMemory(values, grads)) })
	for _, network := range []string{"unix", "tcp"} {
		for _, o := range []params.Optimizer{plainSGD, heavy, {Kind: optimizer.Adam}} {
			sockets := pserver.SocketOff
			if network == "unix" {
				sockets = socketFolder(b)
			}
			b.Run(network+"/"+o.Kind+"/together", func(b *testing.B) {
				book := startServers(b, 1, pserver.Config{DataSocket: sockets})
				measure(b, overTheWire(b, book, o, values, grads))
			})
			b.Run(network+"/"+o.Kind+"/apart", func(b *testing.B) {
				book := newBook(1)
				server := startChild(b, book, childConfig{Sockets: sockets})
				measure(b, overTheWire(b, book, o, values, grads), server.cmd.Process.Pid)
			})
		}
	}
}

// overTheWire is a push-pull of a new client.
func overTheWire(b *testing.B, book *book, optimizer params.Optimizer, values, grads []float32) (step func()) {
	c := connect(b, book, params.Config{Mode: params.Async, Optimizer: optimizer})
	model := func(data []float32) []params.Tensor {
		return []params.Tensor{{Name: "w", Shape: []int{modelBlocks, blockElements}, Data: data}}
	}
	mustInit(b, c, model(values))
	n := uint64(0)
	return func() {
		n++
		if _, err := c.PushPull(b.Context(), n, 1, model(grads), model(values)); err != nil {
			b.Fatal(err)
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
