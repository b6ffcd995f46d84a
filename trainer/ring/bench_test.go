package ring

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"
)

// processorTime returns the processor time of the process.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

const benchFloats = 8 << 20 // 32 MiB for each member

// BenchmarkAllReduce sums vectors of 32 MiB. GB/s is the length of the vector by the time of a sum. The row tcp sends and receives the same
// bytes by plain writes and reads, without sums and checksums.
func BenchmarkAllReduce(b *testing.B) {
	for _, n := range []int{2, 4} {
		vectors := make([][]float32, n)
		for i := range vectors {
			vectors[i] = make([]float32, benchFloats)
		}
		run := func(name string, prepare func(b *testing.B) func(i int) error) {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				do := prepare(b)
				each(b, n, do)
				before := processorTime(b)
				for b.Loop() {
					each(b, n, do)
				}
				gigabytes := float64(b.N) * 4 * benchFloats / 1e9
				b.ReportMetric(gigabytes/b.Elapsed().Seconds(), "GB/s")
				b.ReportMetric((processorTime(b)-before).Seconds()/gigabytes/float64(n), "cpu-s/GB")
				b.ReportMetric(0, "ns/op")
			})
		}
		run("tcp", func(b *testing.B) func(int) error { return copies(b, n) })
		run("allreduce", func(b *testing.B) func(int) error {
			groups := newGroups(b, n, Config{})
			return func(i int) error { return groups[i].AllReduce(context.Background(), vectors[i]) }
		})
	}
}

// copies returns a function by which each of n members sends 2/n of a vector to each other one.
func copies(b *testing.B, n int) func(int) error {
	conns := make([][]net.Conn, n)
	for i := range conns {
		conns[i] = make([]net.Conn, n)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer listener.Close()
	for i := range n {
		for j := range i {
			dialed, err := net.Dial("tcp", listener.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			accepted, err := listener.Accept()
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _, _ = dialed.Close(), accepted.Close() })
			conns[i][j], conns[j][i] = dialed, accepted
		}
	}
	const bytes = 2 * 4 * benchFloats
	return func(i int) error {
		var running sync.WaitGroup
		errs := make(chan error, 2*n)
		for _, c := range conns[i] {
			if c == nil {
				continue
			}
			running.Go(func() {
				block := make([]byte, maxBlock)
				for sent := 0; sent < bytes/n; sent += maxBlock {
					if _, err := c.Write(block); err != nil {
						errs <- err
						return
					}
				}
			})
			running.Go(func() {
				block := make([]byte, maxBlock)
				for got := 0; got < bytes/n; got += maxBlock {
					if _, err := io.ReadFull(c, block); err != nil {
						errs <- err
						return
					}
				}
			})
		}
		running.Wait()
		select {
		case err := <-errs:
			return err
		default:
			return nil
		}
	}
}
