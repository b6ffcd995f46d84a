package recordio_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"trainmaster/recordio"
)

// text returns n records of 1 KB of words with the frequencies of prose (a power law).
func text(n int) [][]byte {
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

func BenchmarkScan(b *testing.B) {
	records := text(64 << 10)
	for _, layout := range allLayouts {
		for _, compression := range allCompressions {
			b.Run(fmt.Sprintf("%s/%s", compression, layout), func(b *testing.B) {
				path := filepath.Join(b.TempDir(), "bench.rec")
				if err := os.WriteFile(path, write(b, recordio.WriterOptions{Compression: compression, Layout: layout}, records...), 0o600); err != nil {
					b.Fatal(err)
				}
				f, err := recordio.Open(path)
				if err != nil {
					b.Fatal(err)
				}
				defer f.Close()
				b.SetBytes(int64(len(records)) << 10)
				b.ReportAllocs()
				for b.Loop() {
					n := 0
					for _, err := range f.Records() {
						if err != nil {
							b.Fatal(err)
						}
						n++
					}
					if n != len(records) {
						b.Fatal(n)
					}
				}
			})
		}
	}
}

func BenchmarkWrite(b *testing.B) {
	records := text(8 << 10)
	for _, compression := range allCompressions {
		b.Run(compression.String(), func(b *testing.B) {
			b.SetBytes(int64(len(records)) << 10)
			for b.Loop() {
				w := recordio.NewWriter(io.Discard, recordio.WriterOptions{Compression: compression})
				for _, r := range records {
					if err := w.Write(r); err != nil {
						b.Fatal(err)
					}
				}
				if err := w.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkIndex(b *testing.B) {
	for _, size := range []int{1 << 10, 64 << 10} {
		b.Run(fmt.Sprintf("64 chunks of %d bytes", size), func(b *testing.B) {
			var file []byte
			for range 64 {
				file = append(file, write(b, recordio.WriterOptions{}, make([]byte, size))...)
			}
			path := filepath.Join(b.TempDir(), "bench.rec")
			if err := os.WriteFile(path, file, 0o600); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				f, err := recordio.Open(path)
				if err != nil {
					b.Fatal(err)
				}
				index, err := f.Index()
				if err != nil || len(index) != 64 {
					b.Fatal(len(index), err)
				}
				f.Close()
			}
			b.ReportMetric(64*float64(b.N)/b.Elapsed().Seconds(), "chunks/s")
		})
	}
}
