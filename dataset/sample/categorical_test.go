package sample_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"slices"
	"testing"

	"trainmaster/dataset/sample"
)

func TestCategoricalGoldenBytes(t *testing.T) {
	got := hex.EncodeToString(sample.AppendCategorical(nil, sample.Categorical{Label: 1, IDs: []int64{2, -1}}))
	const want = "02020000" + "01000000" + "0200000000000000" + "ffffffffffffffff"
	if got != want {
		t.Fatalf("encoding is %s, want %s", got, want)
	}
}

// 85944171f73967e8 is the hash of "foobar" in the FNV reference.
func TestCategoryID(t *testing.T) {
	if got := sample.CategoryID(3, "foobar"); got != 0x0003_4171_f739_67e8 {
		t.Errorf("id: found %x", got)
	}
	if sample.CategoryID(0, "LAS") == sample.CategoryID(1, "LAS") {
		t.Error("equal categories of two fields: expected two ids")
	}
}

func TestDecodeCategoricalRefuses(t *testing.T) {
	good := sample.AppendCategorical(nil, sample.Categorical{Label: 1, IDs: []int64{7, 8}})
	damaged := func(at int, to byte) []byte {
		rec := bytes.Clone(good)
		rec[at] = to
		return rec
	}
	for name, rec := range map[string][]byte{
		"empty":                       nil,
		"short header":                good[:7],
		"an image":                    damaged(0, 1),
		"label not below the classes": damaged(2, 1),
		"negative label":              damaged(7, 0x80),
		"fewer ids":                   good[:len(good)-8],
		"half an id":                  good[:len(good)-1],
		"more ids":                    damaged(1, 1),
	} {
		t.Run(name, func(t *testing.T) {
			c := sample.Categorical{Label: 42, IDs: []int64{1}}
			if err := sample.DecodeCategorical(rec, &c); !errors.Is(err, sample.ErrMalformed) {
				t.Fatalf("DecodeCategorical: found error %v, expected ErrMalformed", err)
			}
			if c.Label != 42 || !slices.Equal(c.IDs, []int64{1}) {
				t.Fatalf("refused record: expected an unchanged example, found %+v", c)
			}
		})
	}
}

func FuzzDecodeCategorical(f *testing.F) {
	f.Add(sample.AppendCategorical(nil, sample.Categorical{Label: 1, IDs: []int64{1, 2, 3}}))
	f.Add([]byte{2, 1, 0})
	f.Fuzz(func(t *testing.T, rec []byte) {
		var c sample.Categorical
		if sample.DecodeCategorical(rec, &c) != nil {
			return
		}
		if again := sample.AppendCategorical(nil, c); !bytes.Equal(again, rec) {
			t.Fatalf("% x: decoded as %+v, encoded again as % x", rec, c, again)
		}
	})
}
