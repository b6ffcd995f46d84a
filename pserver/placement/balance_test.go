package placement_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"trainmaster/pserver/placement"
	"trainmaster/pserver/table"
)

// After any earlier moves, all blocks are on the given shards, balanced within one block. No block moves twice. The moved bytes are at
// most the share of the new shards plus the blocks of removed shards, within one block.
func TestBalance(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var tensors []placement.Tensor
		for i := range 1 + random.IntN(6) {
			tensors = append(tensors, placement.Tensor{Name: string(rune('a' + i)), Shape: []int{1 + random.IntN(4_000_000)}})
		}
		table, err := placement.New(tensors, 1+random.IntN(5))
		if err != nil {
			t.Fatal(err)
		}
		for range 4 {
			goal := 1 + random.IntN(5)
			moves := table.Balance(goal)
			blocks := table.Blocks()
			before, after := make([]int, 6), make([]int, 6)
			for id, owner := range table.Owners {
				before[owner] += blocks[id].Len
			}
			seen, moved, leaving := map[uint64]bool{}, 0, 0
			for _, m := range moves {
				if seen[m.Number] || table.Owners[m.Number] != m.From || m.From == m.To || int(m.To) >= goal {
					t.Fatalf("move %+v, of a block at %d, to %d shards", m, table.Owners[m.Number], goal)
				}
				seen[m.Number] = true
				table.Owners[m.Number] = m.To
				moved += blocks[m.Number].Len
				if int(m.From) >= goal {
					leaving += blocks[m.Number].Len
				}
			}
			total, largest := 0, 0
			for id, owner := range table.Owners {
				after[owner] += blocks[id].Len
				total += blocks[id].Len
				largest = max(largest, blocks[id].Len)
			}
			if gap := slices.Max(after[:goal]) - slices.Min(after[:goal]); gap > 2*largest {
				t.Fatalf("%v became %v on %d shards: a gap of %d, blocks have %d at most", before, after, goal, gap, largest)
			}
			over := 0
			for i := range goal {
				over += max(0, before[i]-total/goal)
			}
			if moved > over+leaving+largest {
				t.Fatalf("%v became %v on %d shards with %d elements moved, expected %d at most", before, after, goal, moved, over+leaving+largest)
			}
			table.Shards = goal
			if again := table.Balance(goal); len(again) > 0 {
				t.Fatalf("balanced again: %v", again)
			}
		}
	}
}

// Slots of each table are balanced within one over the given shards, with the minimum number of moves. Shards keep their slots in few
// runs.
func TestBalanceSlots(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		var tables []table.Config
		for i := range 1 + random.IntN(4) {
			tables = append(tables, table.Config{Name: string(rune('p' + i)), Dim: 1, Init: table.Zeros})
		}
		table, err := placement.New([]placement.Tensor{{Name: "a"}}, 1+random.IntN(5), tables...)
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			goal := 1 + random.IntN(6)
			before := countSlots(table, 6)
			moves := 0
			for _, m := range table.Balance(goal) {
				if m.Table == 0 {
					table.Owners[m.Number] = m.To
					continue
				}
				moves++
				if owner := &table.SlotOwners[m.Table-1][m.Number]; *owner != m.From || m.From == m.To || int(m.To) >= goal {
					t.Fatalf("move %+v, of a slot at %d, to %d shards", m, *owner, goal)
				} else {
					*owner = m.To
				}
			}
			least := 0
			for k, after := range countSlots(table, 6) {
				if gap := slices.Max(after[:goal]) - slices.Min(after[:goal]); gap > 1 || slices.Max(append(after[goal:], 0)) > 0 {
					t.Fatalf("table %d: %v became %v on %d shards", k, before[k], after, goal)
				}
				for i := range after {
					least += max(0, after[i]-before[k][i])
				}
			}
			if moves != least {
				t.Fatalf("%d moves, expected %d", moves, least)
			}
			totals := make([]int, goal)
			for _, counts := range countSlots(table, goal) {
				for i, n := range counts {
					totals[i] += n
				}
			}
			if gap := slices.Max(totals) - slices.Min(totals); gap > len(tables) {
				t.Fatalf("%v slots of all tables on %d shards", totals, goal)
			}
			table.Shards = goal
			if again := table.Balance(goal); len(again) > 0 {
				t.Fatalf("balanced again: %v", again)
			}
		}
		text, err := placement.LayoutOf(table, table.Shards).Encode()
		if err != nil || len(text) > 100+300*len(tables) {
			t.Fatalf("%d tables take %d bytes, %v: %s", len(tables), len(text), err, text)
		}
	}
}

func countSlots(t *placement.Table, shards int) [][]int {
	counts := make([][]int, len(t.SlotOwners))
	for k, owners := range t.SlotOwners {
		counts[k] = make([]int, shards)
		for _, owner := range owners {
			counts[k][owner]++
		}
	}
	return counts
}

// A layout without slots does not apply to a model with tables.
func TestLayoutOfSlots(t *testing.T) {
	tensors := []placement.Tensor{{Name: "a", Shape: []int{7}}}
	placed, err := placement.New(tensors, 2, table.Config{Name: "t", Dim: 2, Init: table.Zeros}, table.Config{Name: "u", Dim: 1, Init: table.Zeros})
	if err != nil {
		t.Fatal(err)
	}
	placed.Epoch, placed.SlotOwners[1][2] = 3, 0
	text, err := placement.LayoutOf(placed, 3).Encode()
	if want := `{"format":2,"epoch":3,"shards":2,"goal":3,"owners":"0","slots":["0*512 1*512","1*2 0 1*509 0*512"]}`; err != nil || string(text) != want {
		t.Fatalf("%s, %v; expected %s", text, err, want)
	}
	layout, err := placement.ParseLayout(text)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := layout.Apply(placed); err != nil || again.Digest() != placed.Digest() {
		t.Errorf("%+v, %v; expected %+v", again, err, placed)
	}
	layout.Owners = placement.Owners{1}
	if !layout.Gives(placed, 1) || layout.Gives(placed, 0) {
		t.Error("shard 1 was given a block")
	}
	layout.Owners, layout.Slots[0][9] = placement.Owners{0}, 1
	if !layout.Gives(placed, 1) || layout.Gives(placed, 0) || !layout.Owns(1) || layout.Owns(2) {
		t.Error("shard 1 was given a slot")
	}
	for want, wrong := range map[string]string{
		"format 3":            `{"format":3,"epoch":1,"shards":1,"goal":1,"owners":"0"}`,
		"for 3 slots":         `{"format":2,"epoch":1,"shards":1,"goal":1,"owners":"0","slots":["0*3"]}`,
		"shard 1 of 1":        `{"format":2,"epoch":1,"shards":1,"goal":1,"owners":"0","slots":["0*1023 1"]}`,
		"slots of 0 tables":   `{"format":2,"epoch":1,"shards":1,"goal":1,"owners":"0"}`,
		"slots of 1 tables, ": `{"format":2,"epoch":1,"shards":1,"goal":1,"owners":"0","slots":["0*1024"]}`,
	} {
		l, err := placement.ParseLayout([]byte(wrong))
		if err == nil {
			_, err = l.Apply(placed)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

func TestLayout(t *testing.T) {
	table, err := placement.New([]placement.Tensor{{Name: "a", Shape: []int{1_000_000}}, {Name: "b", Shape: []int{7}}}, 2)
	if err != nil {
		t.Fatal(err)
	}
	table.Owners = []uint32{1, 1, 0, 0, 1}
	text, err := placement.LayoutOf(table, 3).Encode()
	if want := `{"format":2,"epoch":1,"shards":2,"goal":3,"owners":"1*2 0*2 1"}`; err != nil || string(text) != want {
		t.Fatalf("%s, %v; expected %s", text, err, want)
	}
	layout, err := placement.ParseLayout(text)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := layout.Apply(table); err != nil || again.Digest() != table.Digest() {
		t.Errorf("%+v, %v; expected %+v", again, err, table)
	}
	for _, wrong := range []string{``, `{}`, `{"epoch":1,"shards":2,"goal":3,"owners":"1"}`, `{"format":2,"epoch":1,"shards":2,"goal":3,"owners":"2"}`, `{"format":2,"epoch":1,"shards":2,"goal":3,"owners":"1*0"}`, `{"format":2,"epoch":1,"shards":2,"goal":3,"owners":"1*99999999999"}`, `{"format":2,"epoch":1,"shards":2,"goal":0,"owners":"1"}`} {
		if l, err := placement.ParseLayout([]byte(wrong)); err == nil {
			t.Errorf("%s is %+v", wrong, l)
		}
	}
}
