package tool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"trainmaster/dataset"
	"trainmaster/recordio"
)

// Figures are the results of a [Bench]. A GB is 10^9 bytes of records before compression.
type Figures struct {
	RecordBytes int        `json:"record_bytes"`
	Records     int        `json:"records"`
	Runs        int        `json:"runs"` // each figure is the median of that many
	Processors  int        `json:"processors"`
	Write       []Speed    `json:"write"`
	Scan        []Speed    `json:"scan"`
	Index       IndexSpeed `json:"index"`
}

// Speed is the speed of writing or scanning with one compression.
type Speed struct {
	Compression    string  `json:"compression"`
	GBPerCPUSecond float64 `json:"gb_per_cpu_s"`
	GBPerSecond    float64 `json:"gb_per_s"`
	Ratio          float64 `json:"ratio"` // of the records' bytes to the file's
}

// IndexSpeed is the speed of indexing many files.
type IndexSpeed struct {
	Files              int     `json:"files"`
	Chunks             int     `json:"chunks"`
	Seconds            float64 `json:"seconds"` // to list the files and read their indexes
	CPUSeconds         float64 `json:"cpu_seconds"`
	ChunksPerSecond    float64 `json:"chunks_per_s"`
	ChunksPerCPUSecond float64 `json:"chunks_per_cpu_s"`
}

const benchRecordBytes = 1024

// Bench measures writing, scanning and indexing.
type Bench struct {
	Folder        string
	Records       int
	Runs          int
	Files         int
	ChunksPerFile int
}

// Validate returns an error if a number is not positive.
func (b *Bench) Validate() error {
	if min(b.Records, b.Runs, b.Files, b.ChunksPerFile) < 1 {
		return errors.New("--records, --runs, --files and --chunks-per-file must be 1 or more")
	}
	return nil
}

// Table writes the figures as tab-separated cells.
func (f Figures) Table(w io.Writer) {
	fmt.Fprintln(w, "WHAT\tCOMPRESSION\tGB/CPU-S\tGB/S\tRATIO")
	for _, s := range f.Write {
		fmt.Fprintf(w, "write\t%s\t%.2f\t%.2f\t%.2f\n", s.Compression, s.GBPerCPUSecond, s.GBPerSecond, s.Ratio)
	}
	for _, s := range f.Scan {
		fmt.Fprintf(w, "scan\t%s\t%.2f\t%.2f\t%.2f\n", s.Compression, s.GBPerCPUSecond, s.GBPerSecond, s.Ratio)
	}
	x := f.Index
	fmt.Fprintf(w, "\nWHAT\tFILES\tCHUNKS\tSECONDS\tCHUNKS/S\nindex\t%d\t%d\t%.2f\t%.0f\n", x.Files, x.Chunks, x.Seconds, x.ChunksPerSecond)
}

// Run measures in a new directory below Folder, and removes it.
func (b *Bench) Run(ctx context.Context) (Figures, error) {
	folder, err := os.MkdirTemp(b.Folder, "master-bench-recordio-")
	if err != nil {
		return Figures{}, err
	}
	defer os.RemoveAll(folder)
	figures := Figures{
		RecordBytes: benchRecordBytes, Records: b.Records, Runs: b.Runs, Processors: runtime.GOMAXPROCS(0),
	}
	records := TextRecords(b.Records)
	for _, c := range []recordio.Compression{recordio.None, recordio.Snappy, recordio.Gzip} {
		path := filepath.Join(folder, c.String())
		write, err := b.measure(ctx, func() error { return writeRecords(path, c, records) })
		if err != nil {
			return figures, err
		}
		scan, err := b.measure(ctx, func() error {
			n, err := countRecords(ctx, path)
			if err == nil && n != int64(b.Records) {
				err = fmt.Errorf("%s: %d records were read of %d", path, n, b.Records)
			}
			return err
		})
		if err != nil {
			return figures, err
		}
		info, err := os.Stat(path)
		if err != nil {
			return figures, err
		}
		ratio := float64(b.Records*benchRecordBytes) / float64(info.Size())
		figures.Write = append(figures.Write, b.speed(c, write, ratio))
		figures.Scan = append(figures.Scan, b.speed(c, scan, ratio))
		if err := os.Remove(path); err != nil {
			return figures, err
		}
	}
	figures.Index, err = b.index(ctx, folder, records[0])
	return figures, err
}

func (b *Bench) speed(c recordio.Compression, t spent, ratio float64) Speed {
	gb := float64(b.Records) * benchRecordBytes / 1e9
	return Speed{Compression: c.String(), GBPerCPUSecond: gb / t.cpu.Seconds(), GBPerSecond: gb / t.clock.Seconds(), Ratio: ratio}
}

// index measures a report of a dataset: names to files to chunks.
func (b *Bench) index(ctx context.Context, folder string, record []byte) (IndexSpeed, error) {
	first := filepath.Join(folder, "part-00000")
	err := writeWhole(first, func(file *os.File) error {
		w := recordio.NewWriter(file, recordio.WriterOptions{RecordsPerChunk: 1})
		for range b.ChunksPerFile {
			if err := w.Write(record); err != nil {
				return err
			}
		}
		return w.Close()
	})
	if err != nil {
		return IndexSpeed{}, err
	}
	content, err := os.ReadFile(first)
	if err != nil {
		return IndexSpeed{}, err
	}
	for i := 1; i < b.Files; i++ {
		if err := os.WriteFile(fmt.Sprintf("%s/part-%05d", folder, i), content, 0o600); err != nil {
			return IndexSpeed{}, err
		}
	}
	t, err := b.measure(ctx, func() error {
		listing, err := dataset.Source{}.List(ctx, []string{filepath.Join(folder, "part-*")})
		if err != nil {
			return err
		}
		var indexer dataset.Indexer
		indexes, err := indexer.Index(ctx, listing)
		if err != nil {
			return err
		}
		if len(indexes) != b.Files || len(indexes[b.Files-1]) != b.ChunksPerFile {
			return fmt.Errorf("%d files were indexed, the last with %d chunks", len(indexes), len(indexes[b.Files-1]))
		}
		return nil
	})
	chunks := float64(b.Files * b.ChunksPerFile)
	return IndexSpeed{
		Files: b.Files, Chunks: b.Files * b.ChunksPerFile, Seconds: t.clock.Seconds(), CPUSeconds: t.cpu.Seconds(),
		ChunksPerSecond: chunks / t.clock.Seconds(), ChunksPerCPUSecond: chunks / t.cpu.Seconds(),
	}, err
}

// spent is the time of a measurement.
type spent struct{ cpu, clock time.Duration }

// measure runs work once to warm up and then returns the medians of its runs.
func (b *Bench) measure(ctx context.Context, work func() error) (spent, error) {
	var cpu, clock []time.Duration
	for i := range b.Runs + 1 {
		if ctx.Err() != nil {
			return spent{}, context.Cause(ctx)
		}
		start, startCPU := time.Now(), processorTime()
		if err := work(); err != nil {
			return spent{}, err
		}
		if i > 0 {
			clock, cpu = append(clock, time.Since(start)), append(cpu, processorTime()-startCPU)
		}
	}
	slices.Sort(cpu)
	slices.Sort(clock)
	return spent{cpu: cpu[len(cpu)/2], clock: clock[len(clock)/2]}, nil
}

// processorTime is what this process has used so far, user and system.
func processorTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err) // it fails only for a wrong argument
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func writeRecords(path string, c recordio.Compression, records [][]byte) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	w := recordio.NewWriter(file, recordio.WriterOptions{Compression: c})
	for _, record := range records {
		if err := w.Write(record); err != nil {
			return err
		}
	}
	return w.Close()
}

// TextRecords makes n records of 1 KB of words, whose frequencies differ as in a natural language.
func TextRecords(n int) [][]byte {
	rng := rand.New(rand.NewPCG(1, 1))
	vocabulary := make([][]byte, 20_000)
	for i := range vocabulary {
		word := make([]byte, 2+rng.IntN(9))
		for j := range word {
			word[j] = "etaoinshrdlcumwfgypbvkjxqz"[int(26*rng.Float64()*rng.Float64())]
		}
		vocabulary[i] = append(word, ' ')
	}
	frequency := rand.NewZipf(rng, 1.1, 3, uint64(len(vocabulary)-1))
	records := make([][]byte, n)
	for i := range records {
		record := make([]byte, 0, benchRecordBytes+16)
		for len(record) < benchRecordBytes {
			record = append(record, vocabulary[frequency.Uint64()]...)
		}
		records[i] = record[:benchRecordBytes]
	}
	return records
}
