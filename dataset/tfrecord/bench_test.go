package tfrecord_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"trainmaster/dataset/tfrecord"
)

// processorTime is what this process has used, user and system.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// measure reports GB of records per processor second.
func measure(b *testing.B, bytes int64, work func() (records int64, err error), records int64) {
	b.Helper()
	b.SetBytes(bytes)
	b.ReportAllocs()
	start, runs := processorTime(b), 0
	for b.Loop() {
		runs++
		if n, err := work(); err != nil || n != records {
			b.Fatal(n, err)
		}
	}
	b.ReportMetric(float64(runs)*float64(bytes)/1e9/(processorTime(b)-start).Seconds(), "GB/cpu-s")
}

func benchFile(b *testing.B, c tfrecord.Compression, size, records int) *tfrecord.File {
	b.Helper()
	record := make([]byte, size)
	rng := rand.New(rand.NewPCG(7, 7))
	path := filepath.Join(b.TempDir(), "bench.tfrecord")
	out, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	w := tfrecord.NewWriter(out, c)
	for range records {
		for i := 0; i < size; i += 8 {
			record[i] = byte(rng.Uint32())
		}
		if err := w.Write(record); err != nil {
			b.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	if err := out.Close(); err != nil {
		b.Fatal(err)
	}
	f, err := tfrecord.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { f.Close() })
	return f
}

func BenchmarkRead(b *testing.B) {
	for _, c := range []tfrecord.Compression{tfrecord.None, tfrecord.Gzip, tfrecord.Zlib} {
		b.Run(c.String(), func(b *testing.B) {
			const records = 256 << 10
			f := benchFile(b, c, 1<<10, records)
			measure(b, records<<10, func() (n int64, err error) {
				for _, err := range f.Records() {
					if err != nil {
						return n, err
					}
					n++
				}
				return n, nil
			}, records)
		})
	}
}

func BenchmarkIndex(b *testing.B) {
	for _, size := range []int{1 << 10, 15 << 10, 64 << 10} {
		b.Run(fmt.Sprintf("%dKB", size>>10), func(b *testing.B) {
			records := 256 << 20 / size
			f := benchFile(b, tfrecord.None, size, records)
			measure(b, int64(records*size), func() (n int64, err error) {
				index, err := f.Index(b.Context(), tfrecord.IndexOptions{})
				for _, c := range index {
					n += c.Records
				}
				return n, err
			}, int64(records))
		})
	}
}
