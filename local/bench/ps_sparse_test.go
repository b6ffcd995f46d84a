package bench_test

import (
	"os"
	"testing"

	"trainmaster/local/bench"
)

// Nothing is timed here: it must run and say something.
func TestPSTableFigures(t *testing.T) {
	p := bench.PSTable{Setup: bench.Setup{Program: program(t), Stderr: os.Stderr}, Rows: 3000, MostRows: 5000, Batch: 700, Runs: 2}
	figures, err := p.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	fields(t, figures, "rows", "most_rows", "batch", "lookups_per_s", "updates_per_s", "lookup_cpu_ns", "update_cpu_ns", "bytes_per_row", "gc_ms")
	if min(figures.LookupsPS, figures.UpdatesPS, figures.LookupNS, figures.UpdateNS, figures.BytesOfRow, figures.GCMillis) <= 0 {
		t.Errorf("%+v", figures)
	}
	p.MostRows = 1
	if _, err := p.Run(t.Context()); err == nil {
		t.Error("fewer rows than there are to be measured")
	}
}

// BenchmarkPSTable measures rates at a million rows, and memory at ten million.
func BenchmarkPSTable(b *testing.B) {
	for b.Loop() {
		self, err := os.Executable()
		if err != nil {
			b.Fatal(err)
		}
		p := bench.PSTable{Setup: bench.Setup{Program: bench.Program{self, childWord}, Stderr: os.Stderr}, Rows: 1_000_000, MostRows: 10_000_000, Batch: 20_000, Runs: 3}
		f, err := p.Run(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(f.LookupsPS/1e6, "Mlookups/s")
		b.ReportMetric(f.UpdatesPS/1e6, "Mupdates/s")
		b.ReportMetric(f.LookupNS, "lookup-cpu-ns")
		b.ReportMetric(f.UpdateNS, "update-cpu-ns")
		b.ReportMetric(f.BytesOfRow, "B/row")
		b.ReportMetric(f.GCMillis, "gc-ms")
	}
}
