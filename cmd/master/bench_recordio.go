package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
	"trainmaster/dataset"
	"trainmaster/recordio"
)

// recordioFigures is what `master bench recordio` measures. GB are 10^9 bytes of records as the user sees them.
type recordioFigures struct {
	RecordBytes int             `json:"record_bytes"`
	Records     int             `json:"records"`
	Runs        int             `json:"runs"` // each figure is the median of that many
	Processors  int             `json:"processors"`
	Write       []recordioSpeed `json:"write"`
	Scan        []recordioSpeed `json:"scan"`
	Index       indexSpeed      `json:"index"`
}

type recordioSpeed struct {
	Compression    string  `json:"compression"`
	GBPerCPUSecond float64 `json:"gb_per_cpu_s"`
	GBPerSecond    float64 `json:"gb_per_s"`
	Ratio          float64 `json:"ratio"` // of the records' bytes to the file's
}

type indexSpeed struct {
	Files              int     `json:"files"`
	Chunks             int     `json:"chunks"`
	Seconds            float64 `json:"seconds"` // to list the files and read their indexes
	CPUSeconds         float64 `json:"cpu_seconds"`
	ChunksPerSecond    float64 `json:"chunks_per_s"`
	ChunksPerCPUSecond float64 `json:"chunks_per_cpu_s"`
}

const benchRecordBytes = 1024

// recordioBench is one run of the measurements.
type recordioBench struct {
	folder        string
	records       int
	runs          int
	files         int
	chunksPerFile int
}

func benchRecordioCommand() *cobra.Command {
	var b recordioBench
	cmd := &cobra.Command{
		Use:   "recordio",
		Short: "Measure writing, scanning and indexing of RecordIO files",
		Long: `Bench recordio writes files of 1 KB records of text, scans them with every checksum verified and every record split off,
and lists and indexes many files of many chunks, all of it from and to the page cache. Speeds are per second of processor time,
user and system, of this process, and per second of the clock.`,
		Example: `  master bench recordio
  master bench recordio -o json --files 10000 --chunks-per-file 64`,
	}
	flags := cmd.Flags()
	flags.StringVar(&b.folder, "dir", "", "`directory` for the files, removed afterwards (default a temporary one)")
	flags.IntVar(&b.records, "records", 256<<10, "`records` of 1 KB to write and scan")
	flags.IntVar(&b.runs, "runs", 5, "`times` that each measurement is repeated; the median counts")
	flags.IntVar(&b.files, "files", 10_000, "`files` to index")
	flags.IntVar(&b.chunksPerFile, "chunks-per-file", 64, "`chunks` of one record in each of them")
	format := cli.AddOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if min(b.records, b.runs, b.files, b.chunksPerFile) < 1 {
			return cli.UsageErrorf("--records, --runs, --files and --chunks-per-file must be 1 or more")
		}
		figures, err := b.run(cmd.Context())
		if err != nil {
			return err
		}
		return cli.Render(cmd.OutOrStdout(), *format, figures, func(w io.Writer) {
			fmt.Fprintln(w, "WHAT\tCOMPRESSION\tGB/CPU-S\tGB/S\tRATIO")
			for _, s := range figures.Write {
				fmt.Fprintf(w, "write\t%s\t%.2f\t%.2f\t%.2f\n", s.Compression, s.GBPerCPUSecond, s.GBPerSecond, s.Ratio)
			}
			for _, s := range figures.Scan {
				fmt.Fprintf(w, "scan\t%s\t%.2f\t%.2f\t%.2f\n", s.Compression, s.GBPerCPUSecond, s.GBPerSecond, s.Ratio)
			}
			x := figures.Index
			fmt.Fprintf(w, "\nWHAT\tFILES\tCHUNKS\tSECONDS\tCHUNKS/S\nindex\t%d\t%d\t%.2f\t%.0f\n", x.Files, x.Chunks, x.Seconds, x.ChunksPerSecond)
		})
	}
	return cmd
}

func (b *recordioBench) run(ctx context.Context) (recordioFigures, error) {
	folder, err := os.MkdirTemp(b.folder, "master-bench-recordio-")
	if err != nil {
		return recordioFigures{}, err
	}
	defer os.RemoveAll(folder)
	figures := recordioFigures{
		RecordBytes: benchRecordBytes, Records: b.records, Runs: b.runs, Processors: runtime.GOMAXPROCS(0),
	}
	records := textRecords(b.records)
	for _, c := range []recordio.Compression{recordio.None, recordio.Snappy, recordio.Gzip} {
		path := filepath.Join(folder, c.String())
		write, err := b.measure(ctx, func() error { return writeRecords(path, c, records) })
		if err != nil {
			return figures, err
		}
		scan, err := b.measure(ctx, func() error {
			n, err := countRecords(ctx, path)
			if err == nil && n != int64(b.records) {
				err = fmt.Errorf("%s: %d records were read of %d", path, n, b.records)
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
		ratio := float64(b.records*benchRecordBytes) / float64(info.Size())
		figures.Write = append(figures.Write, b.speed(c, write, ratio))
		figures.Scan = append(figures.Scan, b.speed(c, scan, ratio))
		if err := os.Remove(path); err != nil {
			return figures, err
		}
	}
	figures.Index, err = b.index(ctx, folder, records[0])
	return figures, err
}

func (b *recordioBench) speed(c recordio.Compression, t spent, ratio float64) recordioSpeed {
	gb := float64(b.records) * benchRecordBytes / 1e9
	return recordioSpeed{Compression: c.String(), GBPerCPUSecond: gb / t.cpu.Seconds(), GBPerSecond: gb / t.clock.Seconds(), Ratio: ratio}
}

// index measures what a report of a dataset costs: names to files to chunks.
func (b *recordioBench) index(ctx context.Context, folder string, record []byte) (indexSpeed, error) {
	first := filepath.Join(folder, "part-00000")
	err := writeWhole(first, func(file *os.File) error {
		w := recordio.NewWriter(file, recordio.WriterOptions{RecordsPerChunk: 1})
		for range b.chunksPerFile {
			if err := w.Write(record); err != nil {
				return err
			}
		}
		return w.Close()
	})
	if err != nil {
		return indexSpeed{}, err
	}
	content, err := os.ReadFile(first)
	if err != nil {
		return indexSpeed{}, err
	}
	for i := 1; i < b.files; i++ {
		if err := os.WriteFile(fmt.Sprintf("%s/part-%05d", folder, i), content, 0o600); err != nil {
			return indexSpeed{}, err
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
		if len(indexes) != b.files || len(indexes[b.files-1]) != b.chunksPerFile {
			return fmt.Errorf("%d files were indexed, the last with %d chunks", len(indexes), len(indexes[b.files-1]))
		}
		return nil
	})
	chunks := float64(b.files * b.chunksPerFile)
	return indexSpeed{
		Files: b.files, Chunks: b.files * b.chunksPerFile, Seconds: t.clock.Seconds(), CPUSeconds: t.cpu.Seconds(),
		ChunksPerSecond: chunks / t.clock.Seconds(), ChunksPerCPUSecond: chunks / t.cpu.Seconds(),
	}, err
}

// spent is what something took.
type spent struct{ cpu, clock time.Duration }

// measure runs work once to warm up and then returns the medians of its runs.
func (b *recordioBench) measure(ctx context.Context, work func() error) (spent, error) {
	var cpu, clock []time.Duration
	for i := range b.runs + 1 {
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

// textRecords makes n records of 1 KB of words, whose frequencies differ as in a natural language.
func textRecords(n int) [][]byte {
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
