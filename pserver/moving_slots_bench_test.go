package pserver_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"trainmaster/pserver"
	"trainmaster/trainer/params"
)

// BenchmarkMoveSlots is a step of a move: about 16 MiB of rows of 64 floats with Adam, frozen at one server and copied to another one.
// The longest is what a push may wait for.
func BenchmarkMoveSlots(b *testing.B) {
	table := params.Table{Name: "big", Dim: 64, Init: params.Zeros}
	book := startServers(b, 2, pserver.Config{})
	c := connect(b, book, params.Config{Mode: params.Async, Optimizer: tablesAdam, Tables: []params.Table{table}})
	mustInit(b, c, little())
	ids := everyID(1_000_000)
	step := uint64(0)
	for some := range slices.Chunk(ids, 100_000) {
		step++
		if err := c.PushRows(within(b), table.Name, step, 1, some, make([]float32, len(some)*table.Dim)); err != nil {
			b.Fatal(err)
		}
	}
	placer := newPlacer(b, book)
	stored := resize(b, book, placer, 1)
	longest, steps := time.Duration(0), 0
	for b.Loop() {
		began := time.Now()
		next, _, err := placer.Move(within(b), 1, stored)
		if err != nil {
			b.Fatal(err)
		}
		if strings.Contains(string(next), `"shards":1`) {
			b.Fatal("all slots are moved: expected -benchtime 12x")
		}
		longest = max(longest, time.Since(began))
		steps++
		stored = commitPlacement(b, book, placer, next)
	}
	b.ReportMetric(float64(longest.Milliseconds()), "longest-ms")
}
