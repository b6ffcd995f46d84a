package shards

import (
	"strings"
	"testing"

	"trainmaster/pserver/placement"
	"trainmaster/pserver/table"
)

// A server with another placement is refused with the first difference in words.
func TestDifferenceOfPlacementsIsNamed(t *testing.T) {
	placed := func(shards, dim int, shape []int, key table.Key) *placement.Table {
		p, err := placement.New([]placement.Tensor{{Name: "w", Shape: shape}}, shards, table.Config{Name: "users", Dim: dim, Init: "zeros"})
		if err != nil {
			t.Fatal(err)
		}
		p.Sparse[0].Key = key
		return p
	}
	mine := placed(2, 4, []int{3}, table.Key{})
	elsewhere := placed(2, 4, []int{3}, table.Key{})
	elsewhere.Owners[0] ^= 1
	for name, try := range map[string]struct {
		theirs *placement.Table
		says   string
	}{
		"shards": {placed(3, 4, []int{3}, table.Key{}), "on 2 shards, found 1 and 1 on 3"},
		"tensor": {placed(2, 4, []int{5}, table.Key{}), `expected the tensor "w" [3], found "w" [5]`},
		"table":  {placed(2, 8, []int{3}, table.Key{}), "Dim:4"},
		"key":    {placed(2, 4, []int{3}, table.Key{1, 2}), `table "users" has another key of ids`},
		"owners": {elsewhere, "on other shards"},
	} {
		if got := difference(try.theirs, mine); !strings.Contains(got, try.says) {
			t.Errorf("%s: %q, expected %q in it", name, got, try.says)
		}
	}
}
