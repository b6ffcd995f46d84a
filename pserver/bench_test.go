package pserver_test

import (
	"testing"

	"golang.org/x/sys/unix"

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

// BenchmarkPushPull moves 100 MiB of gradients to one shard and 100 MiB of
// parameters back over loopback. Both directions count as bytes.
func BenchmarkPushPull(b *testing.B) {
	for name, o := range map[string]params.Optimizer{"sgd": plainSGD, "momentum": heavy, "adam": {Kind: optimizer.Adam}} {
		b.Run(name, func(b *testing.B) {
			book := startServers(b, 1, pserver.Config{})
			c := connect(b, book, params.Config{Mode: params.Async, Optimizer: o})
			values := []params.Tensor{{Name: "w", Shape: []int{100, 1 << 18}, Data: make([]float32, 100<<18)}}
			grads := []params.Tensor{{Name: "w", Shape: []int{100, 1 << 18}, Data: make([]float32, 100<<18)}}
			for i := range grads[0].Data {
				grads[0].Data[i] = 1e-3
			}
			mustInit(b, c, values)
			ctx := b.Context()
			step := uint64(0)
			push := func() {
				step++
				if _, err := c.PushPull(ctx, step, 1, grads, values); err != nil {
					b.Fatal(err)
				}
			}
			push() // the connection's buffers and the pool grow
			bytes := 2 * 4 * len(values[0].Data)
			b.SetBytes(int64(bytes))
			began := cpuSeconds(b)
			for b.Loop() {
				push()
			}
			b.ReportMetric((cpuSeconds(b)-began)/float64(b.N)/(float64(bytes)/1e9), "cpu-s/GB")
		})
	}
}
