package bench_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"trainmaster/local/bench"
	"trainmaster/pserver/optimizer"
)

// Nothing is timed here: every way to measure must run and say something.
func TestPSFigures(t *testing.T) {
	var progress []string
	p := bench.PS{
		Setup: bench.Setup{Program: program(t), Folder: t.TempDir(), Stderr: os.Stderr, Progress: func(now string) { progress = append(progress, now) }},
		MiB:   2, Steps: 5, TableMiB: 3, Rows: 3000, MostRows: 5000, Runs: 1, Shards: []int{2}, Trainers: []int{1, 2},
	}
	figures, err := p.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	fields(t, figures, "mib", "runs", "processors", "dense", "scaling", "checkpoint", "optimizers", "sparse")
	fields(t, figures.Dense, "cpu_s_per_gb", "gb_per_s", "limit_cpu_s_per_gb", "grpc_bytes_cpu_s_per_gb", "gob_float32_cpu_s_per_gb")
	d := figures.Dense
	if min(d.CPUSPerGB, d.GBPerS, d.LimitCPUSPerGB, d.GRPCBytesCPUSPerGB, d.GobFloat32CPUSPerGB) <= 0 {
		t.Errorf("dense: %+v", d)
	}
	if len(figures.Scaling) != 2*2*1*2 || len(progress) < len(figures.Scaling) {
		t.Errorf("%d rows of scaling, %d lines of progress", len(figures.Scaling), len(progress))
	}
	for _, row := range figures.Scaling {
		fields(t, row, "network", "wire_dtype", "shards", "trainers", "gb_per_s", "cpu_s_per_gb")
		if row.GBPerS <= 0 || row.CPUSPerGB <= 0 {
			t.Errorf("row %+v", row)
		}
	}
	checkpointFigures(t, figures.Checkpoint, p.Steps*p.Runs)
	empty(t, p.Folder)
	if len(figures.Optimizers) != len(optimizer.Kinds()) {
		t.Errorf("%d optimizers, expected %d", len(figures.Optimizers), len(optimizer.Kinds()))
	}
	for _, o := range figures.Optimizers {
		fields(t, o, "name", "elements_per_s", "plain_elements_per_s", "limit_elements_per_s")
		if min(o.ElementsPerSecond, o.PlainElementsPerSecond, o.LimitElementsPerSecond) <= 0 {
			t.Errorf("row %+v", o)
		}
	}
}

// Checkpoints come last: a directory that cannot be written is found before anything is measured.
func TestPSChecksFolder(t *testing.T) {
	p := bench.PS{MiB: 1, Steps: 1, Setup: bench.Setup{Folder: t.TempDir()}, Rows: 1, MostRows: 1, Runs: 1}
	if err := p.Validate(); err != nil {
		t.Error(err)
	}
	empty(t, p.Folder)
	p.Folder = filepath.Join(p.Folder, "none")
	if err := p.Validate(); err == nil || !strings.Contains(err.Error(), "dir") || !strings.Contains(err.Error(), p.Folder) {
		t.Errorf("missing directory: found error %v", err)
	}
}

func checkpointFigures(t *testing.T, figures bench.CheckpointFigures, steps int) {
	t.Helper()
	fields(t, figures, "p99_ratio", "rows")
	if len(figures.Rows) != 2*2+1 || figures.Rows[4].TableMiB != 3 || figures.P99Ratio <= 0 {
		t.Errorf("checkpoint: %+v", figures)
	}
	for _, row := range figures.Rows {
		fields(t, row, "optimizer", "table_mib", "computes", "normal", "beside", "p50_ratio", "p99_ratio", "checkpoints", "checkpoint_mib", "seconds", "mb_per_s")
		if min(row.P50Ratio, row.P99Ratio, row.Seconds, row.MBPerS) <= 0 || row.Checkpoints < 1 || row.MiB < 2 {
			t.Errorf("row %+v", row)
		}
		for _, times := range []bench.StepTimes{row.Normal, row.Beside} {
			fields(t, times, "steps", "p50_ms", "p99_ms", "max_ms")
			if times.Steps < steps || times.P50MS <= 0 || times.P99MS < times.P50MS || times.MaxMS < times.P99MS {
				t.Errorf("%s: %+v", row.Optimizer, times)
			}
		}
	}
}

func TestPSRefusesWhatMakesNoSense(t *testing.T) {
	for word, spoil := range map[string]func(*bench.PS){
		"mib":      func(p *bench.PS) { p.MiB = 0 },
		"table":    func(p *bench.PS) { p.TableMiB = -1 },
		"rows":     func(p *bench.PS) { p.MostRows = 1 },
		"runs":     func(p *bench.PS) { p.Runs = 0 },
		"shards":   func(p *bench.PS) { p.Shards = []int{1, 0} },
		"steps":    func(p *bench.PS) { p.Steps = 0 },
		"trainers": func(p *bench.PS) { p.Trainers = []int{-1} },
	} {
		p := bench.PS{MiB: 1, Steps: 1, Rows: 2, MostRows: 2, Runs: 1}
		spoil(&p)
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", word, err)
		}
	}
}

// BenchmarkPSCheckpoint is the part of the measurement that is about checkpoints.
func BenchmarkPSCheckpoint(b *testing.B) {
	for b.Loop() {
		self, err := os.Executable()
		if err != nil {
			b.Fatal(err)
		}
		p := bench.PS{Setup: bench.Setup{Program: bench.Program{self, childWord}, Stderr: os.Stderr}, MiB: 100, Steps: 60, TableMiB: 1000, Rows: 1, MostRows: 1, Runs: 3}
		figures, err := p.Checkpoints(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		for _, row := range figures.Rows {
			b.Logf("%+v", row)
		}
		b.ReportMetric(figures.P99Ratio, "p99-ratio")
	}
}
