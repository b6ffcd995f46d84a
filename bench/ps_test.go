package bench_test

import (
	"os"
	"strings"
	"testing"

	"trainmaster/bench"
	"trainmaster/pserver/optimizer"
)

// Nothing is timed here: every way to measure must run and say something.
func TestPSFigures(t *testing.T) {
	var progress []string
	p := bench.PS{
		Program: program(t), MiB: 2, Rows: 3000, MostRows: 5000, Runs: 1, Shards: []int{2}, Trainers: []int{1, 2}, Stderr: os.Stderr,
		Progress: func(now string) { progress = append(progress, now) },
	}
	figures, err := p.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	fields(t, figures, "mib", "runs", "processors", "dense", "scaling", "optimizers", "sparse")
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

func TestPSRefusesWhatMakesNoSense(t *testing.T) {
	for word, spoil := range map[string]func(*bench.PS){
		"mib":      func(p *bench.PS) { p.MiB = 0 },
		"rows":     func(p *bench.PS) { p.MostRows = 1 },
		"runs":     func(p *bench.PS) { p.Runs = 0 },
		"shards":   func(p *bench.PS) { p.Shards = []int{1, 0} },
		"trainers": func(p *bench.PS) { p.Trainers = []int{-1} },
	} {
		p := bench.PS{MiB: 1, Rows: 2, MostRows: 2, Runs: 1}
		spoil(&p)
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", word, err)
		}
	}
}
