package dataset_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"trainmaster/dataset"
	"trainmaster/recordio"
)

// A range is listed and indexed without a file: each task has its record numbers, and no number is in two tasks.
func TestRangeIsIndexedWithoutAFile(t *testing.T) {
	for _, test := range []struct{ records, perTask, tasks int64 }{{1, 1, 1}, {10, 3, 4}, {9, 3, 3}, {5, 100, 1}, {1 << 40, 1 << 30, 1 << 10}} {
		r := dataset.Range{Name: "rows.v1", Records: test.records, PerTask: test.perTask}
		given := fmt.Sprintf("range://rows.v1?per-task=%d&records=%d", test.perTask, test.records)
		listing, err := dataset.Source{Roots: []string{t.TempDir()}}.List(t.Context(), []string{given, given})
		if err != nil {
			t.Fatal(err)
		}
		if len(listing.Files) != 1 || listing.Files[0].Path != r.String() || listing.Files[0].Size != test.records {
			t.Fatalf("%s: found %+v, expected one entry", given, listing.Files)
		}
		paths, err := dataset.Source{}.Paths(t.Context(), []string{given})
		if err != nil || len(paths) != 1 || paths[0] != r.String() {
			t.Errorf("%s: found paths %q, %v", given, paths, err)
		}
		chunks, err := new(dataset.Indexer).Index(t.Context(), listing)
		if err != nil {
			t.Fatal(err)
		}
		if n := int64(len(chunks[0])); n != test.tasks {
			t.Errorf("%s: found %d tasks, expected %d", r, n, test.tasks)
		}
		next := int64(0)
		for _, c := range chunks[0] {
			if c.Offset != next || c.Records == 0 || int64(c.Records) > test.perTask || c.Layout != recordio.Range {
				t.Fatalf("%s: found chunk %+v, expected it to begin at record %d", r, c, next)
			}
			next = c.End()
		}
		if next != test.records {
			t.Errorf("%s: found %d records in tasks", r, next)
		}
	}
}

// The identity of a range is its name and both numbers.
func TestRangesDiffer(t *testing.T) {
	digests := map[[32]byte]string{}
	for _, path := range []string{"range://a?records=10&per-task=2", "range://b?records=10&per-task=2", "range://a?records=11&per-task=2", "range://a?records=10&per-task=5"} {
		listing, err := dataset.Source{}.List(t.Context(), []string{path})
		if err != nil {
			t.Fatal(err)
		}
		if other, found := digests[listing.Digest]; found {
			t.Errorf("%s: found the digest of %s", path, other)
		}
		digests[listing.Digest] = path
	}
}

// F202: an error names the parameter and the expected value.
func TestInvalidRangeIsRefused(t *testing.T) {
	for path, want := range map[string]string{
		"range://":                                         "name: expected range://NAME",
		"range://a/b?records=1&per-task=1":                 `found "a/b"`,
		"range://" + strings.Repeat("a", 64) + "?":         "1 to 63 letters",
		"range://a":                                        "records: expected the parameter once, found it 0 times",
		"range://a?records=5":                              "per-task: expected the parameter once, found it 0 times",
		"range://a?records=5&records=6&per-task=1":         "records: expected the parameter once, found it 2 times",
		"range://a?records=0&per-task=1":                   `records: expected a number from 1 to`,
		"range://a?records=5&per-task=-1":                  `per-task: expected a number from 1 to 4294967295, found "-1"`,
		"range://a?records=5&per-task=4294967296":          `found "4294967296"`,
		"range://a?records=9223372036854775808&per-task=1": `found "9223372036854775808"`,
		"range://a?records=5&per-task=x":                   `found "x"`,
		"range://a?records=5&per-task=1&seed=3":            `expected the parameters records and per-task, found "seed"`,
		"range://a?records=%zz&per-task=1":                 "expected ?records=N&per-task=K after the name",
		"range://a?records=1000001&per-task=1":             "per-task: expected at least 2, so that there are at most 1000000 tasks",
		"range://a?records=" + strings.Repeat("1", 5000):   "...",
	} {
		listing, err := dataset.Source{}.List(t.Context(), []string{path})
		if !errors.Is(err, dataset.ErrBadRange) || !strings.Contains(err.Error(), want) || len(err.Error()) > 1000 {
			t.Errorf("%.60s: found %+v, %v, expected %q", path, listing, err, want)
		}
	}
	for _, most := range []string{"range://a?records=1000000&per-task=1", "range://a?records=4294967295000000&per-task=4294967295"} {
		if _, err := (dataset.Source{}).List(t.Context(), []string{most}); err != nil {
			t.Error(err)
		}
	}
}

// F202: a range together with files is refused, because a task of a trainer then has two readers.
func TestRangeBesideFilesIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a")
	if err := os.WriteFile(file, []byte("some bytes"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, names := range [][]string{{file, "range://a?records=5&per-task=1"}, {"range://a?records=5&per-task=1", "range://b?records=5&per-task=1"}} {
		if _, err := (dataset.Source{}).List(t.Context(), names); !errors.Is(err, dataset.ErrBadRange) || !strings.Contains(err.Error(), "the only path of its dataset") {
			t.Errorf("%q: found %v", names, err)
		}
		if _, err := (dataset.Source{}).Paths(t.Context(), names); !errors.Is(err, dataset.ErrBadRange) {
			t.Errorf("paths of %q: found %v", names, err)
		}
	}
}

func FuzzParseRange(f *testing.F) {
	f.Add("range://a?records=5&per-task=1")
	f.Add("range://a?records=5&per-task=1&x")
	f.Fuzz(func(t *testing.T, path string) {
		r, err := dataset.ParseRange(path)
		if err != nil {
			return
		}
		if again, err := dataset.ParseRange(r.String()); err != nil || again != r || r.PerTask < 1 || (r.Records-1)/r.PerTask >= dataset.MaxRangeTasks {
			t.Errorf("%q: found %+v, then %+v, %v", path, r, again, err)
		}
	})
}
