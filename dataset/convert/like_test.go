package convert_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"trainmaster/dataset/convert"
	"trainmaster/dataset/sample"
)

// Rows that are converted later like an existing dataset give the same records as in that dataset.
func TestConvertLikeGivesTheSameRecords(t *testing.T) {
	for name, c := range map[string]struct {
		whole, later string
		options      convert.Options
		kind         sample.Kind
	}{
		"numbers, one label":  {"a,b,kind\n0.5,1,x\n1.5,2,y\n2.5,4,z\n3,9,y\n", "a,b,kind\n3,9,y\n1.5,2,y\n", convert.Options{TextLabels: true}, sample.Numbers},
		"whole numbers":       {"0.5,1,0\n3,4,1\n2,7,2\n", "3,4,1\n", convert.Options{}, sample.Numbers},
		"label elsewhere":     {"a,b,kind\n0.5,1,x\n1.5,2,y\n", "kind,a,b\ny,1.5,2\n", convert.Options{TextLabels: true}, sample.Numbers},
		"not scaled":          {"0.5,1,0\n3,4,1\n", "3,4,1\n", convert.Options{Scaling: convert.ScalingNone}, sample.Numbers},
		"pixels":              {"0,16,0\n4,8,1\n", "4,8,1\n", convert.Options{}, sample.Pixels},
		"pixels of a maximum": {"0,16,0\n4,8,1\n", "4,8,1\n", convert.Options{MaxPixel: 200}, sample.Pixels},
		"classes of numbers":  {"0.5,3\n1.5,20\n2,16\n", "1.5,20\n", convert.Options{LabelAbove: new(15.0)}, sample.Numbers},
	} {
		dir := t.TempDir()
		o := c.options
		o.Prefix = filepath.Join(dir, "whole")
		whole, err := convert.CSV(t.Context(), strings.NewReader(c.whole), o)
		if err != nil || whole.Kind != c.kind {
			t.Fatalf("%s: %v, %v", name, whole, err)
		}
		later, err := convert.CSV(t.Context(), strings.NewReader(c.later), convert.Options{Prefix: filepath.Join(dir, "later"), Like: o.Prefix})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		all, _ := readShards(t, whole.Train.Paths)
		some, _ := readShards(t, later.Train.Paths)
		for _, s := range some {
			if !slices.Contains(all, s) {
				t.Errorf("%s: found %s, expected one of %s", name, s, all)
			}
		}
		if later.Classes != whole.Classes || !slices.Equal(later.Labels, whole.Labels) {
			t.Errorf("%s: found %d classes %q, expected %d, %q", name, later.Classes, later.Labels, whole.Classes, whole.Labels)
		}
		want, err := convert.MeaningOf(whole.Train.Paths[0])
		if err != nil {
			t.Fatal(err)
		}
		if got, err := convert.MeaningOf(later.Train.Paths[0]); err != nil || got != want {
			t.Errorf("%s: found shape %v, %v, expected %v", name, got, err, want)
		}
	}
}

func TestConvertLikeOfCategories(t *testing.T) {
	dir := t.TempDir()
	prefix := filepath.Join(dir, "whole")
	if _, err := convert.Categorical(t.Context(), strings.NewReader("from,late\noslo,3\nrome,20\n"), convert.Options{Prefix: prefix, LabelAbove: new(15.0)}); err != nil {
		t.Fatal(err)
	}
	r, err := convert.Categorical(t.Context(), strings.NewReader("from,late\nrome,30\n"), convert.Options{Prefix: filepath.Join(dir, "later"), Like: prefix})
	if err != nil || r.Classes != 2 || r.LabelAbove == nil || *r.LabelAbove != 15 {
		t.Fatalf("found %+v, %v", r, err)
	}
	if got := readExamples(t, r.Train.Paths); len(got) != 1 || !strings.HasPrefix(got[0], "1 ") {
		t.Errorf("found %q, expected label 1", got)
	}
}

func TestConvertLikeRefusesOtherTables(t *testing.T) {
	dir := t.TempDir()
	numbers, pixels := filepath.Join(dir, "numbers"), filepath.Join(dir, "pixels")
	for prefix, table := range map[string]string{numbers: "a,b,kind\n0.5,1,x\n1.5,2,y\n", pixels: "1,2,x\n3,4,y\n"} {
		if _, err := convert.CSV(t.Context(), strings.NewReader(table), convert.Options{Prefix: prefix, TextLabels: true}); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		table   string
		options convert.Options
		want    string
	}{
		"another label":       {"a,b,kind\n1,2,z\n", convert.Options{Like: numbers}, `line 2, column 3: label "z": expected a label of ` + numbers + ": x, y"},
		"other columns":       {"b,a,kind\n1,2,x\n", convert.Options{Like: numbers}, `expected feature 1 to be "a", found "b": put the columns into the order of that dataset`},
		"more features":       {"a,b,c,kind\n1,2,3,x\n", convert.Options{Like: numbers}, "expected 2 features, found 3"},
		"no heading":          {"1,2,x\n", convert.Options{Like: numbers}, `expected a heading with the label "kind", as in ` + numbers},
		"no pixels":           {"0.5,2,x\n", convert.Options{Like: pixels}, "expected whole numbers from 0 to 255, as in that dataset, found 0.5 in line 1, column 1"},
		"another scaling":     {"1,2,x\n", convert.Options{Like: pixels, MaxPixel: 4}, "expected no options of labels or scaling"},
		"labels of numbers":   {"1,2,x\n", convert.Options{Like: pixels, LabelAbove: new(1.0)}, "expected numbers, found that labels are texts"},
		"no description":      {"1,2,x\n", convert.Options{Like: filepath.Join(dir, "none")}, "none.dataset.json: expected the description of a dataset"},
		"itself":              {"1,2,x\n", convert.Options{Like: pixels, Prefix: pixels}, "expected another dataset than that to write"},
		"column without name": {"1,2,x\n", convert.Options{Like: numbers, Label: "3"}, ""},
	} {
		if c.options.Prefix == "" {
			c.options.Prefix = filepath.Join(t.TempDir(), "t")
		}
		_, err := convert.CSV(t.Context(), strings.NewReader(c.table), c.options)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: found %v, expected %q", name, err, c.want)
		}
	}
}

// The description has fewer column names than features.
func TestConvertLikeRefusesDamagedDescription(t *testing.T) {
	dir := t.TempDir()
	prefix := filepath.Join(dir, "numbers")
	if _, err := convert.CSV(t.Context(), strings.NewReader("a,b,kind\n0.5,1,x\n1.5,2,y\n"), convert.Options{Prefix: prefix, TextLabels: true}); err != nil {
		t.Fatal(err)
	}
	path := prefix + ".dataset.json"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	damaged := regexp.MustCompile(`("columns":\s*\[\s*"a"),\s*"b"`).ReplaceAll(text, []byte("$1"))
	if bytes.Equal(text, damaged) {
		t.Fatalf("no columns in %s", text)
	}
	if err := os.WriteFile(path, damaged, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = convert.CSV(t.Context(), strings.NewReader("a,b,kind\n1,2,x\n"), convert.Options{Like: prefix, Prefix: filepath.Join(dir, "later")})
	if err == nil || !strings.Contains(err.Error(), "expected 2 columns, found 1: the description is damaged") {
		t.Errorf("found %v", err)
	}
}
