package placement

import (
	"encoding/hex"
	"math"
	"strings"
	"testing"

	"trainmaster/pserver/table"
)

var embeddings = []table.Config{
	{Name: "words", Dim: 16, Init: table.Uniform, Scale: 0.1, Seed: 1},
	{Name: "users", Dim: 8, Init: table.Zeros, Expiry: 100, Admission: 2},
}

// Every slot has an owner, and shards differ by one slot of a table at most.
func TestSlotsAreSpread(t *testing.T) {
	for _, shards := range []int{1, 2, 3, 7, 1000, 1024, 2000} {
		placed, err := New(network, shards, embeddings...)
		if err != nil {
			t.Fatal(err)
		}
		for k := range placed.Sparse {
			least, most, all := table.Slots, 0, 0
			for shard := range shards {
				n := len(placed.HeldSlots(k, shard))
				least, most, all = min(least, n), max(most, n), all+n
			}
			if all != table.Slots || most-least > 1 {
				t.Errorf("%d shards: %d slots, between %d and %d", shards, all, least, most)
			}
		}
		if err := placed.Check(); err != nil {
			t.Error(err)
		}
	}
}

// The digest has every setting of a table, and without tables it is what it always was (see TestTableIsFixed).
func TestDigestHasTables(t *testing.T) {
	digest := func(change func(*Table)) string {
		placed, err := New(network, 2, embeddings...)
		if err != nil {
			t.Fatal(err)
		}
		change(placed)
		d := placed.Digest()
		return hex.EncodeToString(d[:8])
	}
	first := digest(func(*Table) {})
	const want = "60b6e048b832d770"
	if first != want {
		t.Errorf("digest starts with %s, expected %s: every client and server of a job must agree on it", first, want)
	}
	for name, change := range map[string]func(*Table){
		"name":      func(t *Table) { t.Sparse[0].Name = "others" },
		"dim":       func(t *Table) { t.Sparse[0].Dim++ },
		"init":      func(t *Table) { t.Sparse[1].Init = table.Normal },
		"scale":     func(t *Table) { t.Sparse[1].Scale = math.Nextafter32(0.1, 1) },
		"seed":      func(t *Table) { t.Sparse[1].Seed++ },
		"expiry":    func(t *Table) { t.Sparse[0].Expiry++ },
		"admission": func(t *Table) { t.Sparse[0].Admission++ },
		"owner":     func(t *Table) { t.SlotOwners[1][1023] = 1 - t.SlotOwners[1][1023] },
		"fewer":     func(t *Table) { t.Sparse, t.SlotOwners = t.Sparse[:1], t.SlotOwners[:1] },
	} {
		if digest(change) == first {
			t.Errorf("another %s gives the same digest", name)
		}
	}
}

func TestCheckOfTables(t *testing.T) {
	for want, change := range map[string]func(*Table){
		"is a duplicate":      func(t *Table) { t.Sparse[1].Name = t.Sparse[0].Name },
		"rows of 0 floats":    func(t *Table) { t.Sparse[0].Dim = 0 },
		"tensor and of a tab": func(t *Table) { t.Sparse[0].Name = "b1" },
		"slots of 1 tables":   func(t *Table) { t.SlotOwners = t.SlotOwners[:1] },
		"for 1023 slots":      func(t *Table) { t.SlotOwners[0] = t.SlotOwners[0][1:] },
		"shard 2 of 2":        func(t *Table) { t.SlotOwners[0][9] = 2 },
		"1025 tables":         func(t *Table) { t.Sparse = make([]table.Config, 1025) },
	} {
		table, err := New(network, 2, embeddings...)
		if err != nil {
			t.Fatal(err)
		}
		change(table)
		if err := table.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}
