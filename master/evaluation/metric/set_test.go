package metric

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "write the golden file")

// fill adds random values to a set. The kind of a metric follows from its name.
func fill(t *rapid.T, s *Set) {
	name := rapid.SampledFrom([]string{"loss", "weighted", "bytes", "digits", "clicks"}).Draw(t, "name")
	count := rapid.Int64Range(0, 1<<40)
	var err error
	switch name {
	case "loss":
		err = s.AddMean(name, finite().Draw(t, "sum"), rapid.Int64Range(1, 1<<40).Draw(t, "count"))
	case "weighted":
		err = s.AddWeighted(name, finite().Draw(t, "mean"), count.Draw(t, "records"))
	case "bytes":
		err = s.AddSum(name, finite().Draw(t, "value"))
	case "digits":
		cells := make([][]int64, 3)
		for i := range cells {
			cells[i] = rapid.SliceOfN(count, 3, 3).Draw(t, "row")
		}
		err = s.AddConfusion(name, cells)
	case "clicks":
		positives, negatives := make([]int64, Bins), make([]int64, Bins)
		positives[rapid.IntRange(0, Bins-1).Draw(t, "bin")] = count.Draw(t, "positives")
		negatives[rapid.IntRange(0, Bins-1).Draw(t, "bin")] = count.Draw(t, "negatives")
		err = s.AddHistogram(name, positives, negatives)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestMergeHasTheSameBytesInAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parts := make([]*Set, rapid.IntRange(1, 12).Draw(t, "parts"))
		for i := range parts {
			parts[i] = &Set{}
			for range rapid.IntRange(0, 4).Draw(t, "values") {
				fill(t, parts[i])
			}
		}
		merge := func(into, from *Set) {
			if err := into.Merge(from); err != nil {
				t.Fatal(err)
			}
		}
		var all Set
		for _, p := range parts {
			merge(&all, p)
		}
		want, figures := all.Encode(), all.Figures()
		if len(want) > MaxBytes {
			t.Fatalf("%d bytes", len(want))
		}
		// Any tree of merges, with an encoded form between any two.
		trees := slices.Clone(parts)
		for len(trees) > 1 {
			i := rapid.IntRange(0, len(trees)-1).Draw(t, "into")
			j := rapid.IntRange(0, len(trees)-2).Draw(t, "from")
			if j >= i {
				j++
			}
			into, err := Decode(trees[i].Encode())
			if err != nil {
				t.Fatal(err)
			}
			merge(into, trees[j])
			trees[i] = into
			trees = slices.Delete(trees, j, j+1)
		}
		if found := trees[0].Encode(); !bytes.Equal(found, want) {
			t.Fatalf("expected\n%x, found\n%x", want, found)
		}
		if found := trees[0].Figures(); !slices.Equal(found, figures) {
			t.Fatalf("expected %v, found %v", figures, found)
		}
	})
}

func TestBadInputIsNamedAndChangesNothing(t *testing.T) {
	good := func() *Set {
		s := &Set{}
		for _, err := range []error{
			s.AddMean("loss", 3, 2), s.AddSum("bytes", 5), s.AddConfusion("digits", [][]int64{{1, 2}, {3, 4}}),
			s.AddHistogram("clicks", make([]int64, Bins), make([]int64, Bins)),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	bins := func(n int64) []int64 {
		list := make([]int64, Bins)
		list[7] = n
		return list
	}
	for name, c := range map[string]struct {
		add   func(*Set) error
		want  error
		words string
	}{
		"NaN mean":             {func(s *Set) error { return s.AddMean("loss", math.NaN(), 1) }, ErrNotFinite, `metric "loss": not a finite number: NaN`},
		"infinite mean":        {func(s *Set) error { return s.AddWeighted("loss", math.Inf(-1), 1) }, ErrNotFinite, `metric "loss": not a finite number: -Inf`},
		"NaN without records":  {func(s *Set) error { return s.AddWeighted("loss", math.NaN(), 0) }, ErrNotFinite, "NaN"},
		"NaN sum":              {func(s *Set) error { return s.AddSum("other", math.NaN()) }, ErrNotFinite, `metric "other": `},
		"negative count":       {func(s *Set) error { return s.AddMean("loss", 1, -1) }, ErrBadCount, "expected 0 to 9007199254740992, found -1"},
		"negative records":     {func(s *Set) error { return s.AddWeighted("loss", 1, -1) }, ErrBadCount, "found -1"},
		"count too large":      {func(s *Set) error { return s.AddMean("loss", 1, MaxCount+1) }, ErrBadCount, "found 9007199254740993"},
		"total too large":      {func(s *Set) error { return s.AddMean("loss", 1, MaxCount-1) }, ErrBadCount, "in total, found 2 and 9007199254740991"},
		"sum of no values":     {func(s *Set) error { return s.AddMean("loss", 1.5, 0) }, ErrBadCount, "for the sum 1.5, found 0"},
		"another type":         {func(s *Set) error { return s.AddMean("bytes", 1, 1) }, ErrOtherType, `metric "bytes": metric of another type: expected a sum, found a mean`},
		"mean as matrix":       {func(s *Set) error { return s.AddConfusion("loss", [][]int64{{1, 2}, {3, 4}}) }, ErrOtherType, "expected a mean, found a confusion matrix"},
		"other classes":        {func(s *Set) error { return s.AddConfusion("digits", [][]int64{{1, 2, 0}, {3, 4, 0}, {0, 0, 0}}) }, ErrBadShape, "expected 2 classes, found 3"},
		"one class":            {func(s *Set) error { return s.AddConfusion("d", [][]int64{{1}}) }, ErrBadShape, "expected 2 to 100 classes, found 1"},
		"too many classes":     {func(s *Set) error { return s.AddConfusion("d", make([][]int64, 101)) }, ErrBadShape, "found 101"},
		"short row":            {func(s *Set) error { return s.AddConfusion("d", [][]int64{{1, 2}, {3}}) }, ErrBadShape, "label 1: expected 2 predictions, found 1"},
		"negative cell":        {func(s *Set) error { return s.AddConfusion("digits", [][]int64{{1, 2}, {3, -4}}) }, ErrBadCount, "position 3: expected 0 to"},
		"cells too large":      {func(s *Set) error { return s.AddConfusion("d", [][]int64{{MaxCount, 1}, {0, 0}}) }, ErrBadCount, "position 1: expected 0 to 0, found 1"},
		"negative bin":         {func(s *Set) error { return s.AddHistogram("clicks", bins(0), bins(-2)) }, ErrBadCount, "position 1031: expected 0 to"},
		"bins too large":       {func(s *Set) error { return s.AddHistogram("clicks", bins(math.MaxInt64), bins(0)) }, ErrBadCount, "position 7: "},
		"other bins":           {func(s *Set) error { return s.AddHistogram("clicks", bins(0)[:10], bins(0)) }, ErrBadShape, "expected 1024 bins of positives and of negatives, found 10 and 1024"},
		"empty name":           {func(s *Set) error { return s.AddSum("", 1) }, ErrBadName, `expected 1 to 63 letters, digits, "-", "_" and "/", found ""`},
		"name with a dot":      {func(s *Set) error { return s.AddSum("digits.f1", 1) }, ErrBadName, `found "digits.f1"`},
		"name with a line end": {func(s *Set) error { return s.AddSum("a\nb", 1) }, ErrBadName, `found "a\nb"`},
		"long name":            {func(s *Set) error { return s.AddSum(strings.Repeat("x", 64), 1) }, ErrBadName, "found"},
		"too many metrics": {func(s *Set) error {
			var more Set
			for i := range MaxMetrics - 3 {
				if err := more.AddSum(fmt.Sprint("m", i), 1); err != nil {
					return err
				}
			}
			return s.Merge(&more)
		}, ErrTooMany, "expected at most 64 with 65536 counts, found 65 with 2052"},
		"too many cells": {func(s *Set) error {
			var more Set
			for i := range MaxCells / (2 * Bins) {
				if err := more.AddHistogram(fmt.Sprint("h", i), bins(1), bins(1)); err != nil {
					return err
				}
			}
			return s.Merge(&more)
		}, ErrTooMany, "found 36 with 67588"},
		// Every metric but the last fits.
		"one of several": {func(s *Set) error {
			var more Set
			for _, err := range []error{more.AddSum("a", 1), more.AddSum("bytes", 1), more.AddSum("loss", 1)} {
				if err != nil {
					return err
				}
			}
			return s.Merge(&more)
		}, ErrOtherType, `metric "loss"`},
	} {
		t.Run(name, func(t *testing.T) {
			s := good()
			before := s.Encode()
			err := c.add(s)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.words) {
				t.Errorf("expected %v with %q, found %v", c.want, c.words, err)
			}
			if !bytes.Equal(s.Encode(), before) || s.cells != 4+2*Bins {
				t.Error("the set has changed")
			}
		})
	}
}

// goldenSet has a metric of each kind.
func goldenSet(t testing.TB) *Set {
	positives, negatives := make([]int64, Bins), make([]int64, Bins)
	for i, score := range []float64{0, 0.1, 0.4, 0.35, 0.8, 1} {
		bin, err := Bin(score)
		if err != nil {
			t.Fatal(err)
		}
		if i >= 3 {
			positives[bin] += 200
		} else {
			negatives[bin]++
		}
	}
	s := &Set{}
	for _, err := range []error{
		s.AddWeighted("loss", 0.25, 1000), s.AddWeighted("loss", 1e-300, 500), s.AddMean("accuracy", 0, 0),
		s.AddSum("val/drift", -1.5), s.AddSum("val/drift", -0x1p-1074),
		s.AddConfusion("digits", [][]int64{{5, 1, 0}, {0, 300, 2}, {0, 0, 7}}),
		s.AddHistogram("clicks", positives, negatives),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func TestGoldenSet(t *testing.T) {
	s := goldenSet(t)
	found := hex.Dump(s.Encode())
	for _, f := range s.Figures() {
		found += fmt.Sprintf("%s=%v\n", f.Name, f.Value)
	}
	const file = "testdata/set.golden"
	if *update {
		if err := os.WriteFile(file, []byte(found), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if found != string(want) {
		t.Errorf("expected\n%s, found\n%s", want, found)
	}
}

func TestDecodeRefusesOtherBytes(t *testing.T) {
	good := goldenSet(t).Encode()
	for i := range good {
		if _, err := Decode(good[:i]); !errors.Is(err, ErrDamaged) {
			t.Errorf("%d of %d bytes: found %v", i, len(good), err)
		}
	}
	many := []byte{1, 33}
	for i := range 33 {
		many = append(many, 1, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[i], byte(KindHistogram), 0)
	}
	for name, c := range map[string]struct {
		b     string
		want  error
		words string
	}{
		"newer":             {"\x02\x00", ErrNewer, "expected at most 1, found 2"},
		"version 0":         {"\x00\x00", ErrDamaged, "version: expected 1 to 1, found 0"},
		"more bytes":        {"\x01\x00\x00", ErrDamaged, "byte 2: expected the end, found 1 more bytes"},
		"long number":       {"\x01\x80\x00", ErrDamaged, "byte 1: number of metrics: expected the shortest form of 0, found 2 bytes"},
		"too many":          {"\x01\x41", ErrDamaged, "expected at most 64, found 65"},
		"bad name":          {"\x01\x01\x01.", ErrDamaged, `found "."`},
		"order":             {"\x01\x02\x01b\x01\x00\x00\x01a\x01\x00\x00", ErrDamaged, `name: expected one above "b", found "a"`},
		"twice":             {"\x01\x02\x01a\x01\x00\x00\x01a\x01\x00\x00", ErrDamaged, `name: expected one above "a", found "a"`},
		"no kind":           {"\x01\x01\x01a\x05", ErrDamaged, "kind: expected 1 to 4, found 5"},
		"sign":              {"\x01\x01\x01a\x01\x01\x03\x00\x01\x01\x00\x00\x00", ErrDamaged, "found 3, 1 after 0"},
		"limbs":             {"\x01\x01\x01a\x01\x01\x01\x44\x01\x01\x00\x00\x00", ErrDamaged, "1 to 68 limbs"},
		"zero limb":         {"\x01\x01\x01a\x01\x01\x01\x00\x01\x00\x00\x00\x00", ErrDamaged, "no zero limb at an end"},
		"sum of no values":  {"\x01\x01\x01a\x01\x00\x01\x00\x01\x01\x00\x00\x00", ErrDamaged, "bits for 0 values"},
		"sum too large":     {"\x01\x01\x01a\x01\x01\x01\x43\x01\x01\x00\x00\x00", ErrDamaged, "expected at most 2099 bits for 1 values, found 2145"},
		"one class":         {"\x01\x01\x01a\x03\x01\x00", ErrDamaged, "classes: expected 2 to 100, found 1"},
		"too many counts":   {"\x01\x01\x01a\x03\x02\x05", ErrDamaged, "number of counts: expected at most 4, found 5"},
		"zeros at the end":  {"\x01\x01\x01a\x03\x02\x01\x04\x01", ErrDamaged, "zeros: expected at most 3, found 4"},
		"no room for 2nd":   {"\x01\x01\x01a\x03\x02\x02\x03\x01", ErrDamaged, "zeros: expected at most 2, found 3"},
		"count 0":           {"\x01\x01\x01a\x03\x02\x01\x00\x00", ErrDamaged, "count: expected 1 or more"},
		"cells of all":      {string(many), ErrDamaged, "counts: expected at most 65536 in all metrics"},
		"larger than a set": {strings.Repeat("\x01", MaxBytes+1), ErrDamaged, "expected at most 1048576 bytes, found 1048577"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Decode([]byte(c.b)); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.words) {
				t.Errorf("expected %v with %q, found %v", c.want, c.words, err)
			}
		})
	}
}

// Decode accepts only the bytes that Encode writes. The decoded metrics can be merged.
func FuzzDecode(f *testing.F) {
	f.Add(goldenSet(f).Encode())
	f.Add((&Set{}).Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Decode(b)
		if err != nil {
			if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNewer) {
				t.Fatal(err)
			}
			return
		}
		if found := s.Encode(); !bytes.Equal(found, b) {
			t.Fatalf("expected\n%x, found\n%x", b, found)
		}
		for _, f := range s.Figures() {
			if math.IsNaN(f.Value) || math.IsInf(f.Value, 0) {
				t.Fatalf("%v", f)
			}
		}
		var twice Set
		if err := twice.Merge(s); err != nil {
			t.Fatal(err)
		}
		if err := twice.Merge(s); err != nil && !errors.Is(err, ErrBadCount) {
			t.Fatal(err)
		}
	})
}

func TestDecodeAllocatesLittle(t *testing.T) {
	// The largest state from few bytes: 6 matrices of 100 classes without a count.
	b := []byte{1, 6}
	for i := range 6 {
		b = append(b, 1, byte('a'+i), byte(KindConfusion), MaxClasses, 0)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := Decode(b)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; err != nil || n > 1<<20 {
		t.Errorf("allocated %d bytes for %d, %v", n, len(b), err)
	}
}

func BenchmarkMergeHistogram(b *testing.B) {
	counts := make([]int64, Bins)
	for i := range counts {
		counts[i] = int64(i)
	}
	var sum, part Set
	if err := part.AddHistogram("clicks", counts, counts); err != nil {
		b.Fatal(err)
	}
	b.Run("merge", func(b *testing.B) {
		for b.Loop() {
			if err := sum.Merge(&part); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("encode", func(b *testing.B) {
		for b.Loop() {
			b.SetBytes(int64(len(part.Encode())))
		}
	})
}
