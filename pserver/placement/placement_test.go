package placement

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var network = []Tensor{
	{"w2", []int{300, 10}}, {"b1", []int{300}}, {"b2", []int{10}}, {"w1", []int{784, 1000}}, {"scale", nil},
}

func TestTableIsFixed(t *testing.T) {
	table, err := New(network, 2)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, b := range table.Blocks() {
		lines = append(lines, fmt.Sprintf("%d %s[%d:%d] on %d", b.ID, table.Tensors[b.Tensor].Name, b.Offset, b.Offset+b.Len, table.Owners[b.ID]))
	}
	const want = `0 b1[0:300] on 1
1 b2[0:10] on 1
2 scale[0:1] on 1
3 w1[0:262144] on 0
4 w1[262144:524288] on 1
5 w1[524288:784000] on 0
6 w2[0:3000] on 1`
	if got := strings.Join(lines, "\n"); got != want {
		t.Errorf("table\n%s\nexpected\n%s", got, want)
	}
	digest := table.Digest()
	const wantDigest = "3559baa32e77be30"
	if got := hex.EncodeToString(digest[:8]); got != wantDigest {
		t.Errorf("digest starts with %s, expected %s: every client and server of a job must agree on it", got, wantDigest)
	}
}

func TestNewRefuses(t *testing.T) {
	for want, tensors := range map[string][]Tensor{
		"0 tensors":               nil,
		`"w" is a duplicate`:      {{"w", []int{1}}, {"w", []int{2}}},
		"has 0 bytes":             {{"", []int{1}}},
		"has 513 bytes":           {{strings.Repeat("x", 513), []int{1}}},
		"is not UTF-8":            {{"w\xff", []int{1}}},
		"or reserved":             {{"__metadata__", []int{1}}},
		"[2 0]":                   {{"w", []int{2, 0}}},
		"[-1]":                    {{"w", []int{-1}}},
		"17 dimensions":           {{"w", make([]int, 17)}},
		"[4294967296 4294967296]": {{"w", []int{1 << 32, 1 << 32}}},
		`up to "w"`:               {{"v", []int{MaxElements}}, {"w", []int{1}}},
	} {
		if _, err := New(tensors, 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, expected one with %q", err, want)
		}
	}
	for _, shards := range []int{0, -1, MaxShards + 1} {
		if _, err := New(network, shards); err == nil {
			t.Errorf("%d shards accepted", shards)
		}
	}
}

func TestCheckRefuses(t *testing.T) {
	for want, change := range map[string]func(*Table){
		"epoch 0":                 func(t *Table) { t.Epoch = 0 },
		"over 0 shards":           func(t *Table) { t.Shards = 0 },
		"owners for 6 blocks":     func(t *Table) { t.Owners = t.Owners[1:] },
		"to shard 2 of 2":         func(t *Table) { t.Owners[3] = 2 },
		"expected tensors sorted": func(t *Table) { t.Tensors[0], t.Tensors[1] = t.Tensors[1], t.Tensors[0] },
	} {
		table, err := New(network, 2)
		if err != nil {
			t.Fatal(err)
		}
		if err := table.Check(); err != nil {
			t.Fatal(err)
		}
		change(table)
		if err := table.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, expected one with %q", err, want)
		}
	}
}

// Every element is in exactly one block, the order of the tensors is of no
// consequence, and no two shards differ by more than the largest block.
func TestTableProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.IntRange(1, 5*BlockElements), 1, 20).Draw(t, "sizes")
		shards := rapid.IntRange(1, 9).Draw(t, "shards")
		var tensors []Tensor
		for i, n := range sizes {
			tensors = append(tensors, Tensor{fmt.Sprintf("t%02d", i), []int{n}})
		}
		table, err := New(tensors, shards)
		if err != nil {
			t.Fatal(err)
		}
		reversed := slices.Clone(tensors)
		slices.Reverse(reversed)
		if other, err := New(reversed, shards); err != nil || other.Digest() != table.Digest() {
			t.Fatalf("another table for the same tensors in another order: %v", err)
		}
		bytes, seen := make([]int, shards), make([]int, len(sizes))
		for s := range shards {
			for _, b := range table.Owned(s) {
				bytes[s] += b.Len
				seen[b.Tensor] += b.Len
			}
		}
		if !slices.Equal(seen, sizes) {
			t.Fatalf("blocks cover %v elements of %v", seen, sizes)
		}
		if slices.Max(bytes)-slices.Min(bytes) > BlockElements {
			t.Fatalf("shards hold %v elements", bytes)
		}
	})
}
