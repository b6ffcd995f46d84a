package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"trainmaster/cmd/internal/cli"
	"trainmaster/dataset/convert"
	"trainmaster/recordio/tool"
)

// textFile writes a file and returns its path.
func textFile(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestWriteOneRecordPerFileToShards(t *testing.T) {
	var inputs []string
	for i := range 7 {
		inputs = append(inputs, textFile(t, fmt.Sprint(i), fmt.Sprintf("two\nlines of %d", i)))
	}
	prefix := filepath.Join(t.TempDir(), "pictures")
	args := append([]string{"write", "--per-file", "--shards", "3", "--records-per-chunk", "1", "-o", "json", prefix}, inputs...)
	result := decode[tool.Written](t, mustRecordio(t, "", args...))
	if result.Records != 7 || result.Chunks != 7 || len(result.Shards) != 3 {
		t.Fatalf("write says %+v", result)
	}
	if got := mustRecordio(t, "", "cat", result.Shards[1]); got != "two\nlines of 1\ntwo\nlines of 4\n" {
		t.Errorf("the second shard has %q", got)
	}
	for _, path := range result.Shards {
		mustRecordio(t, "", "verify", path)
	}
	if code, _, stderr := recordioRun(t, "", args...); code != cli.ExitFailed || !strings.Contains(stderr, "pictures-00000-of-00003 exists") {
		t.Errorf("a second run exits with %d: %s", code, stderr)
	}
	mustRecordio(t, "", append(args, "--force")...)
	args[3] = "2"
	if code, _, stderr := recordioRun(t, "", append(args, "--force")...); code != cli.ExitFailed || !strings.Contains(stderr, "remove others") {
		t.Errorf("another number of shards exits with %d: %s", code, stderr)
	}
	if entries, err := os.ReadDir(filepath.Dir(prefix)); err != nil || len(entries) != 3 {
		t.Errorf("the directory has %v, %v", entries, err)
	}
}

func TestWriteRefusesInputs(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink("gone", link); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "out.rec")
	table := textFile(t, "file.csv", "1,2\n")
	for want, args := range map[string][]string{
		"expected the files to write": {"write", "--per-file", out},
		"--shards":                    {"write", "--shards", "-1", out},
		dir + ": expected a file, found a directory":     {"write", out, dir},
		"found a symbolic link to gone":                  {"write", "--per-file", out, link},
		"expected the name of a file, found a directory": {"write", "--force", dir, textFile(t, "x", "x")},
		"at least one record for each of 3 shards":       {"write", "--shards", "3", out, textFile(t, "x", "a\nb\n")},
		"write /proc/x.rec: create a file in /proc: ":    {"write", "/proc/x.rec", textFile(t, "x", "x")},
		"write /proc/x-00000-of-00001: create a file ":   {"convert", textFile(t, "x", "1,2\n"), "/proc/x"},
		dir + ": expected a file, found":                 {"convert", dir, out},
		"file.csv to be a directory, found a file":       {"convert", table, filepath.Join(table, "x")},
	} {
		code, _, stderr := recordioRun(t, "", args...)
		if code == cli.ExitOK || !strings.Contains(stderr, want) || strings.Contains(stderr, ".tmp-") {
			t.Errorf("%q exits with %d: %s, want %q", args, code, stderr, want)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*out*")); err != nil || len(left) > 0 {
		t.Errorf("files were left: %v, %v", left, err)
	}
}

// A table with a heading, numbers, and text labels that are not in the last column. The output describes the result.
func TestConvertTableOfNumbers(t *testing.T) {
	table := "species,width,height\n" + strings.Repeat("setosa,1.5,2\nvirginica,3.5,4\n", 50)
	prefix := filepath.Join(t.TempDir(), "iris")
	r := runArgs(t, "recordio", "convert", "--label", "species", "--text-labels", "--held-out", "0.2", textFile(t, "iris.csv", table), prefix)
	r.wants(t, cli.ExitOK, "numbers: 2 features, 2 classes (setosa, virginica)", `names from line 1: label "species", features "width,height"`)
	if strings.Contains(r.stderr, "warning") || !strings.Contains(r.stdout, "CHUNKS") {
		t.Errorf("convert says %s%s", r.stdout, r.stderr)
	}
	d, err := convert.Describe(t.Context(), prefix)
	if err != nil || d.Classes != 2 || d.Features != 2 || d.Train.Chunks < 10 {
		t.Errorf("the dataset is %+v, %v", d, err)
	}
}

func TestConvertWarnsOfFewTasks(t *testing.T) {
	table := textFile(t, "t.csv", strings.Repeat("1,2,0\n", 100))
	runArgs(t, "recordio", "convert", "--records-per-chunk", "100", table, filepath.Join(t.TempDir(), "t")).
		wants(t, cli.ExitOK, "warning: 1 task: expected at least 4 for each trainer, 12 for 3 trainers: write smaller chunks, with --records-per-chunk 8")
	runArgs(t, "recordio", "convert", "--format", "idx", "--header", "yes", "a", "b", "c").wants(t, cli.ExitUsage, "--header: expected --format csv, jsonl or categorical")
	runArgs(t, "recordio", "convert", "--format", "categorical", "--max-pixel", "4", "a", "b").wants(t, cli.ExitUsage, "--max-pixel: expected --format csv or jsonl")
}

func TestVerifyOfAFolderIsNotDamage(t *testing.T) {
	dir := t.TempDir()
	code, stdout, stderr := recordioRun(t, "", "verify", dir)
	if code != cli.ExitFailed || !strings.Contains(stdout, "unreadable") || strings.Contains(stderr, "byte 0") || !strings.Contains(stderr, "directory") {
		t.Errorf("verify exits with %d: %s%s", code, stdout, stderr)
	}
	odd := filepath.Join(dir, "a\nb")
	mustRecordio(t, "x\n", "write", odd)
	for _, command := range []string{"stat", "verify", "index"} {
		if got := mustRecordio(t, "", command, odd); strings.Count(got, "\n") != 2 || !strings.Contains(got, `a\nb"`) {
			t.Errorf("%s prints %q", command, got)
		}
	}
}

// The trainer reports the shards of a prefix, and leaves other names to the master.
func TestTrainerDataTakesPrefix(t *testing.T) {
	dir := t.TempDir()
	prefix := filepath.Join(dir, "d")
	runArgs(t, "recordio", "convert", "--shards", "2", "--held-out", "0.2", textFile(t, "t.csv", strings.Repeat("1,2,0\n", 20)), prefix).wants(t, cli.ExitOK)
	want := []string{prefix + "-00000-of-00002", prefix + "-00001-of-00002", "other/x", "d-0*"}
	if got, err := withShards([]string{prefix, "other/x", "d-0*"}); err != nil || !slices.Equal(got, want) {
		t.Errorf("found %q, %v, expected %q", got, err, want)
	}
	if err := os.Remove(want[0]); err != nil {
		t.Fatal(err)
	}
	runArgs(t, "trainer", "--addr", "127.0.0.1:1", "--servers", "127.0.0.1:1", "--data", prefix).wants(t, cli.ExitUsage, "--data: expected the shard "+prefix+"-00000-of-00002")
}

// The shards of convert can be TFRecord files, which the other commands recognize. Flags of chunks are refused.
func TestConvertToTFRecord(t *testing.T) {
	prefix := filepath.Join(t.TempDir(), "d.tfrecord")
	table := textFile(t, "t.csv", strings.Repeat("1,2,0\n", 100))
	r := runArgs(t, "recordio", "convert", "--shard-format", "tfrecord", "--compression", "gzip", "--shards", "2", "-o", "json", table, prefix)
	r.wants(t, cli.ExitOK, "pixels: 2 features, 1 class")
	if !strings.Contains(r.stderr, "write more shards, with --shards 12") || !strings.Contains(r.stdout, `"tasks": 2`) {
		t.Errorf("convert says %s%s, expected two tasks", r.stdout, r.stderr)
	}
	shard := prefix + "-00001-of-00002"
	if checks := decode[[]tool.Verification](t, mustRecordio(t, "", "verify", "-o", "json", shard)); !checks[0].OK || checks[0].Records != 50 {
		t.Errorf("verify found %+v", checks)
	}
	if stats := decode[[]tool.Stat](t, mustRecordio(t, "", "stat", "-o", "json", shard)); stats[0].Layout != "tfrecord" || stats[0].Compression != "gzip" {
		t.Errorf("stat found %+v", stats)
	}
	mustRecordio(t, "", "convert", "--force", "--shard-format", "tfrecord", "--shards", "2", table, prefix)
	if rows := decode[[]tool.ChunkRow](t, mustRecordio(t, "", "index", "-o", "json", "--records-per-chunk", "20", shard)); len(rows) != 3 || rows[2].Records != 10 {
		t.Errorf("index found %+v", rows)
	}
	for want, flags := range map[string][]string{
		"--records-per-chunk: expected --shard-format recordio":                       {"--records-per-chunk", "9"},
		"--chunk-bytes: expected --shard-format recordio":                             {"--chunk-bytes", "9"},
		"--compression: expected none or gzip with --shard-format tfrecord, found sn": {"--compression", "snappy"},
	} {
		runArgs(t, append([]string{"recordio", "convert", "--shard-format", "tfrecord", table, "x"}, flags...)...).wants(t, cli.ExitUsage, want)
	}
	runArgs(t, "recordio", "index", "--records-per-chunk", "-1", shard).wants(t, cli.ExitUsage, "--records-per-chunk is -1, expected 1 or more")
	runArgs(t, "recordio", "index", "--chunk-bytes", "-1", shard).wants(t, cli.ExitUsage, "--chunk-bytes is -1, expected 1 or more")
}

// The rows of a table can be JSON lines, whose keys name the features and the label.
func TestConvertJSONLines(t *testing.T) {
	lines := strings.Repeat(`{"species": "setosa", "width": 1.5, "height": 2}
{"width": 3.5, "height": 4, "species": "virginica"}
`, 50)
	table, prefix := textFile(t, "iris.jsonl", lines), filepath.Join(t.TempDir(), "iris")
	runArgs(t, "recordio", "convert", "--format", "jsonl", "--label", "species", "--text-labels", "--held-out", "0.2", table, prefix).
		wants(t, cli.ExitOK, "numbers: 2 features, 2 classes (setosa, virginica)", `names from line 1: label "species", features "width,height"`)
	if d, err := convert.Describe(t.Context(), prefix); err != nil || d.Train.Records != 80 || d.LabelColumn != "species" {
		t.Errorf("the dataset is %+v, %v", d, err)
	}
	later := filepath.Join(t.TempDir(), "later")
	runArgs(t, "recordio", "convert", "--like", prefix, table, later).wants(t, cli.ExitOK, "2 classes (setosa, virginica)")
	runArgs(t, "recordio", "convert", "--format", "jsonl", textFile(t, "t.csv", "1,2,0\n"), later+"2").wants(t, cli.ExitFailed, "expected JSON lines")
}
