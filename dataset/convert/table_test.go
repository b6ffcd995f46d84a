package convert_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"trainmaster/dataset/convert"
	"trainmaster/dataset/sample"
)

// convertText converts a table and returns the sorted samples.
func convertText(t *testing.T, table string, o convert.Options) (convert.Result, []string, error) {
	t.Helper()
	o.Prefix = filepath.Join(t.TempDir(), "t")
	r, err := convert.CSV(t.Context(), strings.NewReader(table), o)
	if err != nil {
		return r, nil, err
	}
	got, _ := readShards(t, r.Train.Paths)
	slices.Sort(got)
	return r, got, nil
}

func TestTableOptions(t *testing.T) {
	above := 10.0
	pixels := []string{"0 0.5 [1 2]", "1 0.5 [2 0]"}
	for name, c := range map[string]struct {
		table   string
		options convert.Options
		want    []string
	}{
		"heading":               {"age,income,label\n1,2,0\n2,0,1\n", convert.Options{}, pixels},
		"heading by option":     {"1990,1991,1992\n1,2,0\n2,0,1\n", convert.Options{Heading: convert.HeadingYes}, pixels},
		"label by number":       {"0,1,2\n1,2,0\n", convert.Options{Label: "1"}, pixels},
		"label by name":         {"a,label,b\n1,0,2\n2,1,0\n", convert.Options{Label: "label"}, pixels},
		"name in a number row":  {"7,label,8\n1,0,2\n2,1,0\n", convert.Options{Label: "label"}, pixels},
		"number that is a cell": {"2,1,0\n1,2,0\n", convert.Options{Label: "3"}, []string{"0 0.5 [1 2]", "0 0.5 [2 1]"}},
		"label above":           {"1,2,9.5\n2,0,11\n", convert.Options{LabelAbove: &above}, pixels},
		"text labels":           {"2,0,setosa\n1,2,iris\n", convert.Options{TextLabels: true}, pixels},
		"byte order mark":       {"\ufeff1,2,0\n2,0,1\n", convert.Options{}, pixels},
		"spaces":                {" 1, 2, 0\n2,0 ,1 \n", convert.Options{}, pixels},
		"numbers as they are":   {"1,2.5,0\n-2,0,1\n", convert.Options{Scaling: convert.ScalingNone}, []string{"0 1 [1 2.5]", "1 1 [-2 0]"}},
		"standard numbers":      {"1000,0.5,0\n3000,0.5,1\n", convert.Options{}, []string{"0 1 [-1 0]", "1 1 [1 0]"}},
	} {
		t.Run(name, func(t *testing.T) {
			r, got, err := convertText(t, c.table, c.options)
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("found %q, %v, expected %q", got, err, c.want)
			}
			if r.Features != 2 || r.Train.Records != 2 || r.Train.Chunks != 2 {
				t.Errorf("result: got %+v", r)
			}
		})
	}
}

func TestTableOptionsRefused(t *testing.T) {
	for want, c := range map[string]struct {
		table   string
		options convert.Options
	}{
		`label "target": expected a column from 1 to 3 or a name in a heading, found "a,b,label" in line 1`: {"a,b,label\n1,2,0\n", convert.Options{Label: "target"}},
		`label "0"`:                        {"1,2,0\n", convert.Options{Label: "0"}},
		`expected one column of this name`: {"a,a,b\n1,2,0\n", convert.Options{Label: "a"}},
		`heading "maybe"`:                  {"1,2,0\n", convert.Options{Heading: "maybe"}},
		`found 0.5 in line 2, column 1`:    {"1,2,0\n0.5,1,1\n", convert.Options{MaxPixel: 16}},
		`expected a label, found an empty`: {"1,2,a\n0,1,\n", convert.Options{TextLabels: true}},
		`expected at most 1000 different`:  {manyLabels(1001), convert.Options{TextLabels: true}},
		`the gzip file is cut short`:       {cut(t, "1,2,0\n2,0,1\n"), convert.Options{}},
	} {
		if _, _, err := convertText(t, c.table, c.options); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("found %v, want an error with %q", err, want)
		}
	}
}

func manyLabels(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "1,2,l%d\n", i)
	}
	return b.String()
}

// cut returns a truncated gzip file.
func cut(t *testing.T, text string) string {
	z := gzipped(t, []byte(text))
	return string(z[:len(z)-10])
}

// The scale of numbers depends only on training samples. Held-out samples must not influence a model.
func TestScalingIgnoresHeldOutSamples(t *testing.T) {
	var b strings.Builder
	for i := range 100 {
		fmt.Fprintf(&b, "%d.5,1\n", i*i)
	}
	r, err := convert.CSV(t.Context(), strings.NewReader(b.String()), convert.Options{Prefix: filepath.Join(t.TempDir(), "t"), HeldOut: 0.3})
	if err != nil {
		t.Fatal(err)
	}
	var sum, squares float64
	got, _ := readShards(t, r.Train.Paths)
	for _, s := range got {
		var label, scale, x float64
		if _, err := fmt.Sscanf(s, "%g %g [%g]", &label, &scale, &x); err != nil {
			t.Fatal(err)
		}
		sum += x
		squares += x * x
	}
	if math.Abs(sum) > 1e-4 || math.Abs(squares/70-1) > 1e-4 {
		t.Errorf("the training samples have the mean %g and the variance %g", sum/70, squares/70)
	}
}

// A byte order mark at the beginning of a UTF-8 file is not a part of the first category.
func TestByteOrderMarkIsRemoved(t *testing.T) {
	var ids []string
	for _, mark := range []string{"", "\ufeff"} {
		for _, zip := range []bool{false, true} {
			table := []byte(mark + "LAS,mon,1\n")
			if zip {
				table = gzipped(t, table)
			}
			r, err := convert.Categorical(t.Context(), bytes.NewReader(table), convert.Options{Prefix: filepath.Join(t.TempDir(), "t")})
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, readExamples(t, r.Train.Paths)...)
		}
	}
	if len(slices.Compact(ids)) != 1 {
		t.Errorf("the same row has the ids %q", ids)
	}
}

func TestCategoricalHeadingAndLabel(t *testing.T) {
	for name, c := range map[string]struct {
		table   string
		options convert.Options
	}{
		"heading":     {"place,day,late\nLAS,mon,1\n", convert.Options{}},
		"by name":     {"late,place,day\n1,LAS,mon\n", convert.Options{Label: "late"}},
		"text labels": {"place,day,late\nLAS,mon,yes\nABQ,tue,no\n", convert.Options{TextLabels: true, Heading: convert.HeadingYes}},
	} {
		c.options.Prefix = filepath.Join(t.TempDir(), "t")
		r, err := convert.Categorical(t.Context(), strings.NewReader(c.table), c.options)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := fmt.Sprint(1, []int64{sample.CategoryID(0, "LAS"), sample.CategoryID(1, "mon")})
		if got := readExamples(t, r.Train.Paths); !slices.Contains(got, want) || r.LabelColumn != "late" || !slices.Equal(r.Columns, []string{"place", "day"}) {
			t.Errorf("%s: examples %q, want %s, in %+v", name, got, want, r)
		}
	}
	if _, err := convert.Categorical(t.Context(), strings.NewReader("a,yes\n"), convert.Options{Prefix: filepath.Join(t.TempDir(), "t"), TextLabels: true}); err == nil || !strings.Contains(err.Error(), "--header yes or --header no") {
		t.Errorf("text labels without a heading option: found error %v", err)
	}
}

// A small dataset is split into enough chunks for several trainers unless the caller sets the number.
func TestDefaultChunksGiveTasks(t *testing.T) {
	for _, c := range []struct {
		rows, shards, want int
		options            convert.Options
	}{
		{10, 1, 10, convert.Options{}}, {80, 1, 16, convert.Options{}}, {150, 1, 19, convert.Options{}}, {150, 4, 20, convert.Options{}}, {6400, 4, 64, convert.Options{}},
		{150, 1, 1, convert.Options{RecordsPerChunk: 150}}, {150, 1, 1, convert.Options{ChunkBytes: 1 << 20}},
	} {
		c.options.Shards = c.shards
		r, _, err := convertText(t, strings.Repeat("1,2,0\n", c.rows), c.options)
		if err != nil || r.Train.Chunks != c.want {
			t.Errorf("%d rows in %d shards: %d chunks, %v, want %d", c.rows, c.shards, r.Train.Chunks, err, c.want)
		}
	}
}

func TestDescribeConvertedDataset(t *testing.T) {
	dir := t.TempDir()
	describe := func(want convert.Result) {
		t.Helper()
		got, err := convert.Describe(t.Context(), filepath.Join(dir, "d"))
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("found %+v, %v\nwant %+v", got, err, want)
		}
	}
	options := convert.Options{Prefix: filepath.Join(dir, "d"), Shards: 2, HeldOut: 0.5, TextLabels: true}
	r, err := convert.CSV(t.Context(), strings.NewReader("width,height,kind\n1.5,2,b\n2,3,a\n1,2,c\n2,5,c\n"), options)
	if err != nil || r.Kind != sample.Numbers || r.Classes != 3 || !slices.Equal(r.Labels, []string{"a", "b", "c"}) || len(r.Means) != 2 {
		t.Fatalf("converted %+v, %v", r, err)
	}
	describe(r)
	if err := os.Remove(convert.DescriptionPath(options.Prefix)); err != nil {
		t.Fatal(err)
	}
	bare := convert.Result{Train: r.Train, Test: r.Test, Kind: r.Kind, Features: r.Features, Classes: r.Classes, Scale: r.Scale}
	describe(bare)
	if err := os.Remove(r.Train.Paths[1]); err != nil {
		t.Fatal(err)
	}
	if _, err := convert.Describe(t.Context(), options.Prefix); err == nil || !strings.Contains(err.Error(), "expected 2 shards") {
		t.Errorf("missing shard: found error %v", err)
	}
	if _, err := convert.Describe(t.Context(), filepath.Join(dir, "other")); err == nil || !strings.Contains(err.Error(), "found none") {
		t.Errorf("no shards: found error %v", err)
	}
	for name, c := range map[string]func(context.Context, io.Reader, convert.Options) (convert.Result, error){"pixels": convert.CSV, "categories": convert.Categorical} {
		r, err := c(t.Context(), strings.NewReader("1,2,0\n2,0,1\n"), convert.Options{Prefix: filepath.Join(dir, name)})
		got, describing := convert.Describe(t.Context(), filepath.Join(dir, name))
		if err != nil || describing != nil || fmt.Sprint(got) != fmt.Sprint(r) || string(got.Kind) != name || got.Classes != 2 {
			t.Errorf("%s: described as %+v, %v, want %+v, %v", name, got, describing, r, err)
		}
	}
}

// Shards of earlier releases have no number of classes. Describe counts the labels.
func TestDescribeOldShards(t *testing.T) {
	prefix := filepath.Join(t.TempDir(), "old")
	var records [][]byte
	for _, label := range []int{3, 0, 5} {
		records = append(records, sample.Append(nil, sample.Sample{Label: label, Scale: 0.5, Pixels: []byte{1, 2}}))
	}
	writeRecords(t, prefix+"-00000-of-00001", records)
	r, err := convert.Describe(t.Context(), prefix)
	if err != nil || r.Classes != 6 || r.Features != 2 || r.Kind != sample.Pixels || r.Scale != 0.5 || r.Train.Records != 3 {
		t.Errorf("described as %+v, %v", r, err)
	}
}
