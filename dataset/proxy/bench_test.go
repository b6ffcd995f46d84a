package proxy_test

import (
	"context"
	"iter"
	"math/rand/v2"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"trainmaster/dataset/proxy"
	"trainmaster/dataset/tfrecord"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/recordio"
)

// processorTime is what this process has used, user and system: the proxy and its client.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// prose returns n records of 1 KB of words with the frequencies of prose (a power law).
func prose(n int) [][]byte {
	rng := rand.New(rand.NewPCG(7, 7))
	zipf := rand.NewZipf(rng, 1.1, 3, 20_000)
	records := make([][]byte, n)
	for i := range records {
		r := make([]byte, 0, 1100)
		for len(r) < 1024 {
			for word := zipf.Uint64()*2654435761%1_000_003 + 30; word > 0; word /= 26 {
				r = append(r, 'a'+byte(word%26))
			}
			r = append(r, ' ')
		}
		records[i] = r[:1024]
	}
	return records
}

// BenchmarkRead compares the proxy and its client, over a loopback connection, with direct reads of the file. Records have 1 KB.
func BenchmarkRead(b *testing.B) {
	records := prose(64 << 10)
	for _, format := range []string{"none", "snappy", "gzip", "tfrecord"} {
		path := filepath.Join(b.TempDir(), format)
		putChunks(b, path, format, 0, records) // chunks of 1 MiB
		spec := &pb.DataFilesSpec{Files: []*pb.DataFileSpec{{Path: path, NumRecord: int64(len(records)), Stamp: stamp(b, path)}}}
		s := serve(b, proxy.Config{}, "")
		client := proxy.Client{Conn: s.conn}
		for name, read := range map[string]func() iter.Seq2[[]byte, error]{
			"direct": func() iter.Seq2[[]byte, error] { return direct(b, path, format) },
			"proxy":  func() iter.Seq2[[]byte, error] { return client.Records(context.Background(), spec, 0) },
		} {
			b.Run(format+"/"+name, func(b *testing.B) {
				b.SetBytes(int64(len(records)) << 10)
				start, runs := processorTime(b), 0
				for b.Loop() {
					runs++
					n := 0
					for _, err := range read() {
						if err != nil {
							b.Fatal(err)
						}
						n++
					}
					if n != len(records) {
						b.Fatal(n)
					}
				}
				b.ReportMetric(float64(runs*len(records))*1024/1e9/(processorTime(b)-start).Seconds(), "GB/cpu-s")
			})
		}
	}
}

// direct reads a file without a proxy.
func direct(b *testing.B, path, format string) iter.Seq2[[]byte, error] {
	b.Helper()
	if format == "tfrecord" {
		f, err := tfrecord.Open(path)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { f.Close() })
		return f.Records()
	}
	f, err := recordio.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { f.Close() })
	return f.Records()
}
