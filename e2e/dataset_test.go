package e2e

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"trainmaster/dataset/convert"
	"trainmaster/recordio"
	"trainmaster/testdata"
)

// F40: a file ends in the middle of a chunk. The trainer that reports it exits with an error that names the file and the
// offset of the chunk. Another trainer can then report complete files.
func TestTruncatedFile(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	master := j.master("--ps", "1")
	j.server()
	whole := j.data.Train.Paths[1]
	index, err := recordio.Open(whole)
	if err != nil {
		t.Fatal(err)
	}
	chunks, err := index.Index()
	if err != nil {
		t.Fatal(err)
	}
	if err := index.Close(); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	last := chunks[len(chunks)-1]
	cut := filepath.Join(t.TempDir(), "cut")
	if err := os.WriteFile(cut, content[:len(content)-7], 0o600); err != nil {
		t.Fatal(err)
	}
	bad := j.trainerOn("bad", []string{j.data.Train.Paths[0], cut})
	bad.wantExit(1)
	for _, words := range []string{"report the dataset", fmt.Sprintf("%s: byte %d: truncated", cut, last.Offset)} {
		if !strings.Contains(bad.log(), words) {
			t.Errorf("log of the trainer: expected %q", words)
		}
	}
	j.trainer("good").wantExit(0)
	master.wantExit(0)
	j.wantExactlyOnce(1, tasksPerPass)
}

// F31: the first report defines the dataset. The same files in another order are the same dataset. For other files, the
// error names the difference.
func TestDifferentDatasets(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	master := j.master("--passes", "2", "--ps", "1")
	j.server()
	first := j.trainer("first")
	j.awaitMidPass(1)
	paths := j.data.Train.Paths

	fewer := j.trainerOn("fewer", paths[1:])
	fewer.wantExit(1)
	more := j.trainerOn("more", append(j.data.Test.Paths[:1:1], paths...))
	more.wantExit(1)
	for p, differs := range map[*process]string{fewer: paths[0], more: j.data.Test.Paths[0]} {
		for _, words := range []string{"another dataset", differs} {
			if !strings.Contains(p.log(), words) {
				t.Errorf("log of trainer %q: expected %q", p.name, words)
			}
		}
	}

	second := j.trainerOn("second", reversed(paths))
	first.wantExit(0)
	second.wantExit(0)
	master.wantExit(0)
	h := j.wantExactlyOnce(2, tasksPerPass)
	if h.sessions["second"] != 1 {
		t.Errorf("the trainer with the same files in another order joined %d times, expected once", h.sessions["second"])
	}
}

// A job on TFRecord files, plain and compressed, trains each record once in each pass, although its master and a trainer are killed. A
// damaged file is refused with its name and the byte.
func TestTFRecordDatasetSurvivesKills(t *testing.T) {
	t.Parallel()
	const passes, files, mixed = 4, 24, 6
	j := newJob(t)
	other := j.data.Train.Paths
	var err error
	options := convert.Options{Prefix: filepath.Join(j.dir, "data", "tf"), Shards: files, HeldOut: 0.2, Seed: 1, ShardFormat: convert.ShardTFRecord}
	if j.data, err = convert.CSV(t.Context(), strings.NewReader(string(testdata.Digits)), options); err != nil {
		t.Fatal(err)
	}
	gzipFiles(t, j.data.Train.Paths[:mixed])
	want, got := sorted(t, other), sorted(t, j.data.Train.Paths)
	if !slices.Equal(got, want) {
		t.Fatalf("TFRecord files: %d records, expected the %d of the RecordIO files", len(got), len(want))
	}

	content, err := os.ReadFile(j.data.Train.Paths[files-1])
	if err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(t.TempDir(), "cut")
	if err := os.WriteFile(cut, content[:len(content)-7], 0o600); err != nil {
		t.Fatal(err)
	}
	flags := []string{"--passes", fmt.Sprint(passes), "--ps", "1"}
	master := j.master(flags...)
	j.server()
	bad := j.trainerOn("bad", append([]string{cut}, j.data.Train.Paths[:files-1]...))
	bad.wantExit(1)
	if text := bad.log(); !strings.Contains(text, cut+": record ") || !strings.Contains(text, "truncated") {
		t.Errorf("log of the trainer: expected the byte of the damage in %s", cut)
	}

	a, b, c := j.trainer("a"), j.trainer("b"), j.trainer("c")
	term := j.awaitLeader(0)
	j.awaitMidPass(1)
	master.kill()
	master = j.master(flags...)
	j.awaitLeader(term)
	j.awaitMidPass(2)
	b.kill()
	a.wantExit(0)
	c.wantExit(0)
	master.wantExit(0)
	j.wantExactlyOnce(passes, files)
}

// gzipFiles compresses files in place.
func gzipFiles(t *testing.T, paths []string) {
	t.Helper()
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(w.Close(), os.WriteFile(path, b.Bytes(), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

// sorted returns the records of files, sorted.
func sorted(t *testing.T, paths []string) (list []string) {
	t.Helper()
	for record, err := range records(paths) {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, string(record))
	}
	slices.Sort(list)
	return list
}
