package convert_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"trainmaster/dataset/convert"
	"trainmaster/dataset/sample"
	"trainmaster/recordio"
)

// readExamples returns the examples of all shards in order.
func readExamples(t *testing.T, paths []string) (examples []string) {
	t.Helper()
	for _, path := range paths {
		f, err := recordio.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		for record, err := range f.Records() {
			var c sample.Categorical
			if err == nil {
				err = sample.DecodeCategorical(record, &c)
			}
			if err != nil {
				t.Fatal(err)
			}
			examples = append(examples, fmt.Sprint(c.Label, c.IDs))
		}
		f.Close()
	}
	return examples
}

func TestCategorical(t *testing.T) {
	above := 15.0
	for name, c := range map[string]struct {
		table string
		above *float64
		want  []int // labels of the rows
	}{
		"labels":      {"LAS,mon,1\nABQ,tue,0\n\"San José, CA\",mon,2\n", nil, []int{1, 0, 2}},
		"above limit": {"LAS,mon,15\nABQ,tue,15.5\n\"San José, CA\",mon,-3\n", &above, []int{0, 1, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := convert.Categorical(t.Context(), strings.NewReader(c.table), convert.Options{Prefix: filepath.Join(t.TempDir(), "t"), LabelAbove: c.above})
			if err != nil {
				t.Fatal(err)
			}
			var want []string
			for i, place := range []string{"LAS", "ABQ", "San José, CA"} {
				ids := []int64{sample.CategoryID(0, place), sample.CategoryID(1, []string{"mon", "tue", "mon"}[i])}
				want = append(want, fmt.Sprint(c.want[i], ids))
			}
			got := readExamples(t, r.Train.Paths)
			slices.Sort(want)
			slices.Sort(got)
			if !slices.Equal(got, want) || r.Features != 2 || r.Classes != slices.Max(c.want)+1 {
				t.Errorf("%d features, %d classes, examples\n%q, want\n%q", r.Features, r.Classes, got, want)
			}
		})
	}
}

func TestCategoricalRefuses(t *testing.T) {
	above := 0.0
	for name, c := range map[string]struct {
		table string
		above *float64
		want  string
	}{
		"nothing":            {"", nil, "no samples"},
		"no category":        {"1\n", nil, "found 1 column"},
		"uneven rows":        {"a,b,1\na,1\n", nil, "line 2: expected 3 fields, as in line 1, found 2"},
		"a word for a label": {"a,1\na,yes\n", nil, `line 2, column 2: label "yes" is not a whole number`},
		"negative label":     {"a,-1\n", nil, "is not a whole number"},
		"no number":          {"a,1\na,late\n", &above, `line 2, column 2: label "late" is not a number`},
		"NaN":                {"a,1\na,NaN\n", &above, "is not a number"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			_, err := convert.Categorical(t.Context(), strings.NewReader(c.table), convert.Options{Prefix: filepath.Join(dir, "t"), LabelAbove: c.above})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
			if left := names(t, dir); len(left) > 0 {
				t.Errorf("directory: found %q", left)
			}
		})
	}
}
