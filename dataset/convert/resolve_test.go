package convert_test

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"trainmaster/dataset"
	"trainmaster/dataset/convert"
)

// Each way to name a dataset resolves to its training files and its held-out files.
func TestResolveTakesPrefixesPathsAndGlobs(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	table := strings.Repeat("1,2,0\n", 20)
	for _, o := range []convert.Options{{Prefix: "d/held", Shards: 2, HeldOut: 0.2}, {Prefix: "d/all"}} {
		if _, err := convert.CSV(t.Context(), strings.NewReader(table), o); err != nil {
			t.Fatal(err)
		}
	}
	writeRecords(t, "d/mine.rec", [][]byte{[]byte("x")})
	held := []string{"d/held-00000-of-00002", "d/held-00001-of-00002"}
	test := []string{"d/held-test-00000-of-00001"}
	all := []string{"d/all-00000-of-00001"}
	for _, tt := range []struct{ names, train, test []string }{
		{[]string{"d/held"}, held, test},
		{[]string{"d/held-test"}, test, nil},
		{[]string{"d/all"}, all, nil},
		{[]string{"d/held-0*"}, held, nil},
		{[]string{"d/held-test-*"}, test, nil},
		{[]string{"d/held-*-of-*"}, held, test},
		{[]string{"d/*-of-*"}, slices.Concat(all, held), test},
		{[]string{"d/mine.rec"}, []string{"d/mine.rec"}, nil},
		{[]string{"d/all", "d/all-0*", "d/mine.rec"}, append(all, "d/mine.rec"), nil},
		{[]string{filepath.Join(dir, "d", "held")}, held, test},
	} {
		gotTrain, gotTest, err := convert.Resolve(t.Context(), tt.names...)
		if err != nil || !slices.Equal(gotTrain, absolute(t, tt.train)) || !slices.Equal(gotTest, absolute(t, tt.test)) {
			t.Errorf("%q: found %q, held out %q, %v; expected %q, held out %q", tt.names, gotTrain, gotTest, err, tt.train, tt.test)
		}
	}
	for name, want := range map[string]string{
		"d/none":    `data "d/none": expected shards d/none-00000-of-00001 and so on, as ` + "`master recordio convert`" + ` writes them, or a file or glob of RecordIO files, found neither: `,
		"missing/x": `expected shards missing/x-00000-of-00001 and so on`,
		"d":         "not a regular file but a directory",
		"":          "not a file name",
	} {
		if _, _, err := convert.Resolve(t.Context(), name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: found %v, expected an error with %q", name, err, want)
		}
	}
	if _, _, err := convert.Resolve(t.Context(), "d/none*"); !errors.Is(err, dataset.ErrNoMatch) {
		t.Errorf("a glob without a match: found %v", err)
	}
}

func absolute(t *testing.T, paths []string) []string {
	t.Helper()
	var all []string
	for _, path := range paths {
		path, err := filepath.Abs(path)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, path)
	}
	return all
}

func TestNameOfLeavesOutShardAndExtension(t *testing.T) {
	for path, want := range map[string]string{"/a/digits-00000-of-00004": "digits", "/a/b.rec": "b", "/a/plain": "plain"} {
		if got := convert.NameOf(path); got != want {
			t.Errorf("%s: found %q, expected %q", path, got, want)
		}
	}
}
