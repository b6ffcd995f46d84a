package persist

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"trainmaster/pserver/model"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/table"
)

// BenchmarkTableCheckpoints measures the bytes of a checkpoint when a share of the rows changes before each one, by random ids or always
// by the same.
func BenchmarkTableCheckpoints(b *testing.B) {
	const rows, dim, checkpoints = 200_000, 16, 60
	for _, expiry := range []uint64{0, 1 << 20} {
		for _, share := range []float64{0.001, 0.01, 0.1} {
			for _, same := range []bool{false, true} {
				b.Run(fmt.Sprintf("expiry=%d/changed=%v/same=%t", expiry, share, same), func(b *testing.B) {
					for b.Loop() {
						written, full := bytesOfCheckpoints(b, rows, dim, checkpoints, int(share*rows), expiry, same)
						b.ReportMetric(float64(written)/checkpoints/1e6, "MB/checkpoint")
						b.ReportMetric(100*float64(written)/float64(checkpoints*full), "%/full")
					}
				})
			}
		}
	}
}

func bytesOfCheckpoints(b *testing.B, rows int, dim, checkpoints, changed int, expiry uint64, same bool) (written, full int64) {
	s := openTableShard(b, b.TempDir(), 1)
	cfg := table.Config{Name: "users", Dim: dim, Init: table.Zeros, Expiry: expiry}
	placed, err := placement.New([]placement.Tensor{{Name: "w", Shape: []int{4}}}, 2, cfg)
	if err != nil {
		b.Fatal(err)
	}
	m, err := model.New(optimizer.Config{Kind: optimizer.SGD, LearningRate: 1}, false, placed)
	if err != nil {
		b.Fatal(err)
	}
	h := begin(b, s.Shard, m)
	who, fault := join(b, s.Shard, 1, 2)
	if fault != nil {
		b.Fatal(fault)
	}
	step, r := uint64(0), rand.New(rand.NewPCG(1, 1))
	push := func(ids []int64) {
		for _, id := range ids {
			step++
			batch := table.Batch{Spans: []table.Span{{Slot: table.SlotOf(id), Rows: 1}}, IDs: []int64{id}, Values: make([]float32, dim)}
			if _, err := h.Tables()[0].Update(&batch, who.Trainer, table.Step{Number: step, Scale: 1}, nil); err != nil {
				b.Fatal(err)
			}
		}
		s.Counters.RowsPushed.Add(1)
	}
	var all []int64
	for id := int64(0); len(all) < rows; id++ {
		if h.Tables()[0].Holds(table.SlotOf(id)) {
			all = append(all, id)
		}
	}
	save := func() (size int64) {
		if _, err := savePart(b.Context(), s.Checkpoints); err != nil {
			b.Fatal(err)
		}
		files, err := filepath.Glob(filepath.Join(s.folder.String(), fmt.Sprintf("00000001-%08d*", s.sequence), "*"))
		if err != nil {
			b.Fatal(err)
		}
		for _, name := range files {
			if stat, err := os.Stat(name); err == nil {
				size += stat.Size()
			}
		}
		return size
	}
	push(all)
	full = save()
	some := make([]int64, changed)
	for i := range some {
		some[i] = all[r.IntN(rows)]
	}
	for range checkpoints {
		push(some)
		written += save()
		for i := range some {
			if !same {
				some[i] = all[r.IntN(rows)]
			}
		}
	}
	return written, full
}
