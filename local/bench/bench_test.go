package bench_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"trainmaster/internal/objectstore/s3test"
	"trainmaster/local/bench"
	"trainmaster/recordio"
	"trainmaster/recordio/tool"
)

const childWord = "bench-child"

// TestMain is also the children of the measurements.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == childWord {
		if err := bench.ServeChild(context.Background(), os.Args[2:], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func program(t *testing.T) bench.Program {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return bench.Program{self, childWord}
}

// fields decodes the JSON of v and checks that it has all of the names.
func fields(t *testing.T, v any, names ...string) {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var object map[string]any
	if err := json.Unmarshal(text, &object); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if _, ok := object[name]; !ok {
			t.Errorf("no field %s in %s", name, text)
		}
	}
}

// Nothing is timed here: every way to measure must run and say something.
func TestQueueFigures(t *testing.T) {
	var progress []string
	q := bench.Queue{
		Setup: bench.Setup{Program: program(t), Folder: t.TempDir(), Stderr: os.Stderr, Progress: func(now string) { progress = append(progress, now) }},
		Vias:  bench.Vias, Callers: []int{3}, Tasks: []int{20},
		Length: 500 * time.Millisecond, Rounds: 1, EtcdDelay: time.Millisecond,
	}
	figures, err := q.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	fields(t, figures, "raw_txn_per_s", "rows", "disk", "processors")
	if want := 2 * len(bench.Vias); len(figures.Rows) != want || len(progress) != want {
		t.Fatalf("%d rows, %d lines of progress, expected %d of each", len(figures.Rows), len(progress), want)
	}
	for _, row := range figures.Rows {
		fields(t, row, "via", "callers", "tasks", "ops_per_s", "ratio", "p50_ms", "p99_ms", "cpu_us_per_op", "bytes_per_task", "put_bytes_per_task")
		switch {
		case row.OpsPerS <= 0 || row.RawTxnPerS <= 0 || row.P99MS < row.P50MS || row.StateBytes <= 0 || row.PutBytesPerTask <= 0:
			t.Errorf("row %+v", row)
		case (row.OverLiteral > 0) == strings.HasPrefix(string(row.Via), "literal"):
			t.Errorf("%s: %v times the literal baseline", row.Via, row.OverLiteral)
		case strings.HasPrefix(string(row.Via), "literal") && row.OpsPerTxn > 0.6:
			t.Errorf("the literal baseline made %v ops with each transaction, expected one half", row.OpsPerTxn)
		}
	}
	empty(t, q.Folder)
}

// With OpenRound, each row has a second one, with an open evaluation round.
func TestQueueFiguresWithOpenRound(t *testing.T) {
	q := bench.Queue{
		Setup: bench.Setup{Program: program(t), Folder: t.TempDir(), Stderr: os.Stderr},
		Vias:  []bench.Via{bench.Stream, bench.Literal}, Callers: []int{2}, Tasks: []int{20}, Length: 100 * time.Millisecond, Rounds: 2, OpenRound: true,
	}
	figures, err := q.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, row := range figures.Rows {
		rows = append(rows, fmt.Sprintf("%s %t %t", row.Via, row.OpenRound, row.OpsPerS > 0))
	}
	if got := strings.Join(rows, ","); got != "stream false true,stream true true,literal false true" {
		t.Errorf("found %s", got)
	}
}

func TestRecoveryFigures(t *testing.T) {
	r := bench.Recovery{Setup: bench.Setup{Program: program(t), Folder: t.TempDir(), Stderr: os.Stderr}, Tasks: 2500, Rounds: 2}
	figures, err := r.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	fields(t, figures, "tasks", "seconds", "cpu_seconds", "heap_bytes", "etcd_bytes")
	if figures.Tasks != 2500 || figures.Seconds <= 0 || figures.CPUSeconds <= 0 || figures.HeapBytes <= 0 || figures.EtcdBytes < 2500 {
		t.Errorf("figures %+v", figures)
	}
	empty(t, r.Folder)
}

func TestQueueRefusesWhatMakesNoSense(t *testing.T) {
	good := bench.Queue{Vias: bench.Vias, Callers: []int{1}, Tasks: []int{1}, Length: time.Second, Rounds: 1}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for word, spoil := range map[string]func(*bench.Queue){
		"via":     func(q *bench.Queue) { q.Vias = []bench.Via{"pigeon"} },
		"callers": func(q *bench.Queue) { q.Callers = []int{0} },
		"tasks":   func(q *bench.Queue) { q.Tasks = nil },
		"seconds": func(q *bench.Queue) { q.Length = 0 },
		"rounds":  func(q *bench.Queue) { q.Rounds = 0 },
	} {
		bad := good
		spoil(&bad)
		if err := bad.Validate(); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", word, err)
		}
	}
}

// An interrupted measurement ends its processes and removes their data.
func TestInterruptCleansUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	q := bench.Queue{
		Setup: bench.Setup{Program: program(t), Folder: t.TempDir(), Stderr: os.Stderr, Progress: func(string) { time.AfterFunc(300*time.Millisecond, cancel) }},
		Vias:  []bench.Via{bench.NetRPC}, Callers: []int{2}, Tasks: []int{20},
		Length: time.Hour, Rounds: 1,
	}
	if _, err := q.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("expected the interruption, found %v", err)
	}
	empty(t, q.Folder)
	if left := children(t); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
}

// A child ends when its parent has ended, also if the parent was killed.
func TestChildEndsWithItsInput(t *testing.T) {
	p := program(t)
	cmd := exec.Command(p[0], append(p[1:], "etcd", fmt.Sprintf(`{"Dir":%q}`, t.TempDir()))...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var ready struct{ Endpoint string }
	if err := json.NewDecoder(out).Decode(&ready); err != nil || ready.Endpoint == "" {
		t.Fatalf("the child said %+v, %v", ready, err)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the child ended with %v", err)
	}
}

// empty checks that nothing was left behind.
func empty(t *testing.T, folder string) {
	t.Helper()
	left, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 {
		t.Errorf("left in the directory: %v", left)
	}
}

// children lists the running child processes of this process.
func children(t *testing.T) []int {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	if len(stats) == 0 {
		t.Skip("no /proc here to list processes")
	}
	var list []int
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it ended
		}
		_, rest, _ := bytes.Cut(text, []byte(") "))
		if f := strings.Fields(string(rest)); len(f) > 1 && f[1] == strconv.Itoa(os.Getpid()) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			if syscall.Kill(pid, 0) == nil {
				list = append(list, pid)
			}
		}
	}
	return list
}

// The figures of reading have a row for each format, and a ratio of objects with and without a delay.
func TestDataFigures(t *testing.T) {
	store := s3test.Start(t)
	folder := t.TempDir()
	var content bytes.Buffer
	w := recordio.NewWriter(&content, recordio.WriterOptions{})
	for range 100 {
		if err := w.Write(make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	store.Put(t, "train/a", content.Bytes())
	store.Put(t, "train/b", content.Bytes())
	b := bench.Data{Folder: folder, Records: 3000, Runs: 1, Store: store.URL("train/"), StoreDelay: time.Millisecond}
	if err := b.Validate(); err != nil {
		t.Fatal(err)
	}
	f, err := b.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Rows) != 4 {
		t.Errorf("found %d rows, expected 4", len(f.Rows))
	}
	for _, r := range f.Rows {
		if r.Direct <= 0 || r.Proxy <= 0 || r.Index <= 0 || r.Ratio <= 0 {
			t.Errorf("found %+v, expected positive speeds", r)
		}
	}
	if f.Store == nil || f.Store.Objects != 2 || f.Store.Bytes != int64(2*content.Len()) || f.Store.Ratio <= 0 {
		t.Errorf("found %+v, expected 2 objects", f.Store)
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) != 0 {
		t.Errorf("found %v, %v, expected an empty directory", left, err)
	}
}

// BenchmarkObjects reads 4 objects of 32 MB from a server with the S3 protocol, with and without a delay of 20 ms for each request.
func BenchmarkObjects(b *testing.B) {
	store := s3test.Start(b)
	var content bytes.Buffer
	w := recordio.NewWriter(&content, recordio.WriterOptions{})
	for _, record := range tool.TextRecords(32 << 10) {
		if err := w.Write(record); err != nil {
			b.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	for i := range 4 {
		store.Put(b, fmt.Sprintf("train/part-%d", i), content.Bytes())
	}
	data := bench.Data{Folder: b.TempDir(), Records: 1, Runs: 5, Store: store.URL("train/"), StoreDelay: 20 * time.Millisecond}
	for b.Loop() {
		f, err := data.Run(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(f.Store.GBPerS, "GB/s")
		b.ReportMetric(f.Store.DelayedGBPerS, "delayed-GB/s")
		b.ReportMetric(f.Store.Ratio, "ratio")
	}
}
