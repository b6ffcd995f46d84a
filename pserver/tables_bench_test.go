package pserver_test

import (
	"math/rand/v2"
	"os"
	"testing"

	"trainmaster/pserver"
	"trainmaster/trainer/params"
)

// BenchmarkRows looks up and pushes batches of 20,000 random rows of a table of a million rows of 16 at a shard in
// another process, over one connection.
func BenchmarkRows(b *testing.B) {
	const rows, batch, dim = 1_000_000, 20_000, 16
	for _, network := range []string{"unix", "tcp"} {
		sockets := pserver.SocketOff
		if network == "unix" {
			sockets = socketFolder(b)
		}
		book := newBook(1)
		server := startChild(b, book, childConfig{Sockets: sockets})
		c := connect(b, book, params.Config{Mode: params.Async, Tables: []params.Table{{Name: "t", Dim: dim, Init: params.Uniform, Scale: 0.1}}})
		mustInit(b, c, little())
		ids, grads := make([]int64, batch), make([]float32, batch*dim)
		for i := range grads {
			grads[i] = 1e-3
		}
		step := uint64(0)
		push := func() {
			step++
			if err := c.PushRows(b.Context(), "t", step, 1, ids, grads); err != nil {
				b.Fatal(err)
			}
		}
		for first := int64(0); first < rows; first += batch {
			for i := range ids {
				ids[i] = first + int64(i)
			}
			push()
		}
		r := rand.New(rand.NewPCG(1, 1))
		var batches [32][]int64
		for i := range batches {
			batches[i] = make([]int64, batch)
			for j := range batches[i] {
				batches[i][j] = r.Int64N(rows)
			}
		}
		n := 0
		run := func(b *testing.B, do func()) {
			pids := []int{server.cmd.Process.Pid, os.Getpid()}
			began := cpuSeconds(b, pids)
			for b.Loop() {
				n++
				ids = batches[n%len(batches)]
				do()
			}
			b.ReportMetric(float64(b.N)*batch/b.Elapsed().Seconds()/1e6, "Mrows/s")
			b.ReportMetric((cpuSeconds(b, pids)-began)/float64(b.N)/batch*1e9, "cpu-ns/row")
		}
		b.Run(network+"/lookup", func(b *testing.B) {
			run(b, func() {
				if _, err := c.Lookup(b.Context(), "t", ids, grads, 0); err != nil {
					b.Fatal(err)
				}
			})
		})
		b.Run(network+"/update", func(b *testing.B) { run(b, push) })
	}
}
