package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/dataset"
	"trainmaster/dataset/proxy"
	"trainmaster/dataset/tfrecord"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/recordio"
	"trainmaster/recordio/tool"
)

// Data measures reading: of files, through a data proxy, and of objects in a store.
type Data struct {
	Folder  string
	Records int // of 1 KiB, in each file
	Runs    int
	// Store is the URL, prefix or pattern of objects. Empty: none are read.
	Store string
	// StoreDelay is the delay of each request in the second measurement of the objects.
	StoreDelay time.Duration
}

// DataFigures are the results of [Data]. A GB is 10^9 bytes of records before compression.
type DataFigures struct {
	Processors int        `json:"processors"`
	Records    int        `json:"records"`
	Runs       int        `json:"runs"` // each figure is the median of that many
	Rows       []DataRow  `json:"rows"`
	Store      *StoreRows `json:"store,omitempty"`
}

// DataRow has the speeds of a format. All processor time is of the reading process, which contains the data proxy.
type DataRow struct {
	Format string  `json:"format"` // recordio or tfrecord, and its compression
	Direct float64 `json:"direct_gb_per_cpu_s"`
	// Index is the speed of the index of the master, in bytes of records; RecordIO needs only the headers of chunks.
	Index          float64 `json:"index_gb_per_cpu_s"`
	Proxy          float64 `json:"proxy_gb_per_cpu_s"`
	DirectPerClock float64 `json:"direct_gb_per_s"`
	ProxyPerClock  float64 `json:"proxy_gb_per_s"`
	Ratio          float64 `json:"ratio"` // of ProxyPerClock to DirectPerClock
}

// Validate returns an error that begins with the name of a setting.
func (b *Data) Validate() error {
	switch {
	case b.Records < 1:
		return fmt.Errorf("records: expected 1 or more, found %d", b.Records)
	case b.Runs < 1:
		return fmt.Errorf("runs: expected 1 or more, found %d", b.Runs)
	case b.StoreDelay < 0:
		return fmt.Errorf("store-delay: expected 0 or more, found %v", b.StoreDelay)
	case b.Store == "":
		return nil
	}
	_, err := endpoint(b.Store)
	return err
}

// dataFormats are the formats of the rows.
var dataFormats = []struct {
	name  string
	write func(w io.Writer) recordWriter
}{
	{"recordio none", recordIO(recordio.None)}, {"recordio snappy", recordIO(recordio.Snappy)}, {"recordio gzip", recordIO(recordio.Gzip)},
	{"tfrecord none", func(w io.Writer) recordWriter { return tfrecord.NewWriter(w, tfrecord.None) }},
}

type recordWriter interface {
	Write(record []byte) error
	Close() error
}

func recordIO(c recordio.Compression) func(w io.Writer) recordWriter {
	return func(w io.Writer) recordWriter { return recordio.NewWriter(w, recordio.WriterOptions{Compression: c}) }
}

// Run measures in a new directory, and removes it.
func (b *Data) Run(ctx context.Context) (figures DataFigures, err error) {
	folder, err := os.MkdirTemp(b.Folder, "master-bench-data-")
	if err != nil {
		return figures, err
	}
	defer os.RemoveAll(folder)
	client, stop, err := serveProxy(folder)
	if err != nil {
		return figures, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	figures = DataFigures{Processors: runtime.GOMAXPROCS(0), Records: b.Records, Runs: b.Runs}
	records := tool.TextRecords(b.Records)
	for _, format := range dataFormats {
		path := filepath.Join(folder, strings.ReplaceAll(format.name, " ", "-"))
		if err := writeFile(path, format.write, records); err != nil {
			return figures, err
		}
		row, err := b.row(ctx, format.name, path, client)
		if err != nil {
			return figures, err
		}
		figures.Rows = append(figures.Rows, row)
	}
	if b.Store != "" {
		figures.Store, err = b.store(ctx)
	}
	return figures, err
}

func serveProxy(root string) (client proxy.Client, stop func() error, err error) {
	service, err := proxy.NewService(proxy.Config{Roots: []string{root}})
	if err != nil {
		return client, nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return client, nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	log := logrus.New()
	log.SetOutput(io.Discard)
	go func() { served <- service.Serve(ctx, listener, logrus.NewEntry(log)) }()
	conn, err := proxy.Dial(listener.Addr().String())
	stop = func() error {
		if conn != nil {
			conn.Close()
		}
		cancel()
		return <-served
	}
	if err != nil {
		return client, nil, errors.Join(err, stop())
	}
	return proxy.Client{Conn: conn}, stop, nil
}

func writeFile(path string, writer func(io.Writer) recordWriter, records [][]byte) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	w := writer(file)
	for _, record := range records {
		if err := w.Write(record); err != nil {
			return err
		}
	}
	return errors.Join(w.Close(), file.Close())
}

// row measures the three ways of reading a file in turns.
func (b *Data) row(ctx context.Context, format, path string, client proxy.Client) (DataRow, error) {
	spec := &pb.DataFilesSpec{Files: []*pb.DataFileSpec{{Path: path, NumRecord: int64(b.Records)}}}
	ways := []func() error{
		func() error {
			f, err := dataset.Open(path)
			if err != nil {
				return err
			}
			defer f.Close()
			return b.count(ctx, f.Records())
		},
		func() error { return b.count(ctx, client.Records(ctx, spec, 0)) },
		func() error {
			f, err := dataset.Open(path)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.Index(ctx)
			return err
		},
	}
	spent := make([][]duration, len(ways))
	for run := range b.Runs + 1 {
		for i, read := range ways {
			start, cpu := time.Now(), processorTime()
			if err := read(); err != nil {
				return DataRow{}, err
			}
			if run > 0 { // the first fills the page cache
				spent[i] = append(spent[i], duration{time.Since(start), processorTime() - cpu})
			}
		}
	}
	gb := float64(b.Records) * recordBytes / 1e9
	perCPU := func(way int) float64 {
		return gb / median(spent[way], func(d duration) float64 { return d.cpu.Seconds() })
	}
	perClock := func(way int) float64 {
		return gb / median(spent[way], func(d duration) float64 { return d.clock.Seconds() })
	}
	return DataRow{
		Format: format, Direct: perCPU(0), Proxy: perCPU(1), Index: perCPU(2), DirectPerClock: perClock(0), ProxyPerClock: perClock(1),
		Ratio: perClock(1) / perClock(0),
	}, nil
}

type duration struct{ clock, cpu time.Duration }

// count reads all records and compares their number.
func (b *Data) count(ctx context.Context, records iter.Seq2[[]byte, error]) error {
	n := 0
	for _, err := range records {
		if err != nil {
			return err
		}
		if n++; n%4096 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	if n != b.Records {
		return fmt.Errorf("expected %d records, found %d", b.Records, n)
	}
	return nil
}

// Table writes the figures as tab-separated cells.
func (f DataFigures) Table(w io.Writer) {
	fmt.Fprintln(w, "FORMAT\tDIRECT GB/CPU-S\tINDEX GB/CPU-S\tPROXY GB/CPU-S\tDIRECT GB/S\tPROXY GB/S\tRATIO")
	for _, r := range f.Rows {
		fmt.Fprintf(w, "%s\t%.2f\t%.1f\t%.2f\t%.2f\t%.2f\t%.2f\n", r.Format, r.Direct, r.Index, r.Proxy, r.DirectPerClock, r.ProxyPerClock, r.Ratio)
	}
	if s := f.Store; s != nil {
		fmt.Fprintf(w, "\nOBJECTS\tMB\tGB/S\tDELAY MS\tDELAYED GB/S\tRATIO\n%d\t%d\t%.2f\t%g\t%.2f\t%.2f\n", s.Objects, s.Bytes/1e6, s.GBPerS, s.DelayMS, s.DelayedGBPerS, s.Ratio)
	}
	fmt.Fprintf(w, "\n%d processors\n", f.Processors)
}
