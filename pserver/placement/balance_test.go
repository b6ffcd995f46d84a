package placement_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"trainmaster/pserver/placement"
)

// Whatever was moved before: all blocks are on the shards asked for, within a block of each
// other, no block moves twice, and no more bytes do than the new shards' share and what
// had to leave, but for one block.
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
				if seen[m.Block] || table.Owners[m.Block] != m.From || m.From == m.To || int(m.To) >= goal {
					t.Fatalf("move %+v, of a block at %d, to %d shards", m, table.Owners[m.Block], goal)
				}
				seen[m.Block] = true
				table.Owners[m.Block] = m.To
				moved += blocks[m.Block].Len
				if int(m.From) >= goal {
					leaving += blocks[m.Block].Len
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

func TestLayout(t *testing.T) {
	table, err := placement.New([]placement.Tensor{{Name: "a", Shape: []int{1_000_000}}, {Name: "b", Shape: []int{7}}}, 2)
	if err != nil {
		t.Fatal(err)
	}
	table.Owners = []uint32{1, 1, 0, 0, 1}
	text, err := placement.LayoutOf(table, 3).Encode()
	if want := `{"epoch":1,"shards":2,"goal":3,"owners":"1*2 0*2 1"}`; err != nil || string(text) != want {
		t.Fatalf("%s, %v; expected %s", text, err, want)
	}
	layout, err := placement.ParseLayout(text)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := layout.Apply(table); err != nil || again.Digest() != table.Digest() {
		t.Errorf("%+v, %v; expected %+v", again, err, table)
	}
	for _, wrong := range []string{``, `{}`, `{"epoch":1,"shards":2,"goal":3,"owners":"2"}`, `{"epoch":1,"shards":2,"goal":3,"owners":"1*0"}`, `{"epoch":1,"shards":2,"goal":3,"owners":"1*99999999999"}`, `{"epoch":1,"shards":2,"goal":0,"owners":"1"}`} {
		if l, err := placement.ParseLayout([]byte(wrong)); err == nil {
			t.Errorf("%s is %+v", wrong, l)
		}
	}
}
