package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"trainmaster/cmd/internal/cli"
)

// An init container may convert a sample again, while a job reads it: files with its content are not touched, and a missing file is written.
func TestSampleIsConvertedAgain(t *testing.T) {
	for _, name := range []string{"digits", "flights"} {
		prefix := filepath.Join(t.TempDir(), "data", name)
		convert := func(flags ...string) (int, string) {
			r := runArgs(t, append([]string{"recordio", "convert", "--sample", name, prefix}, flags...)...)
			return r.code, r.stderr
		}
		if code, stderr := convert(); code != cli.ExitOK {
			t.Fatal(stderr)
		}
		files, err := filepath.Glob(prefix + "*")
		if err != nil || len(files) != 6 { // 4 shards, a test shard and the description
			t.Fatalf("%v, %v", files, err)
		}
		before := map[string]os.FileInfo{}
		for _, path := range files {
			if before[path], err = os.Stat(path); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Remove(files[1]); err != nil {
			t.Fatal(err)
		}
		if code, stderr := convert(); code != cli.ExitOK {
			t.Fatal(stderr)
		}
		for path, info := range before {
			found, err := os.Stat(path)
			if err != nil || found.Size() != info.Size() || os.SameFile(found, info) == (path == files[1]) {
				t.Errorf("%s: %v; expected the former file, or a new one if it was removed", path, err)
			}
		}
		if err := os.WriteFile(files[0], []byte("another"), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, stderr := convert(); code != cli.ExitFailed || !strings.Contains(stderr, files[0]) {
			t.Errorf("other content: exit code %d, %s", code, stderr)
		}
		if code, stderr := convert("--force"); code != cli.ExitOK {
			t.Error(stderr)
		}
		if all, err := os.ReadDir(filepath.Dir(prefix)); err != nil || len(all) != len(files) {
			t.Errorf("%v, %v: expected %d files", all, err, len(files))
		}
	}
}

func TestSampleRefusals(t *testing.T) {
	prefix := filepath.Join(t.TempDir(), "x")
	for words, args := range map[string][]string{
		"one of digits, flights": {"--sample", "mnist", prefix},
		"--seed":                 {"--sample", "digits", "--seed", "3", prefix},
		"--held-out":             {"--sample", "digits", "--held-out", "0.5", prefix},
		"prefix of the shards":   {"--sample", "digits", "table.csv", prefix},
		"expected the prefix":    {"--sample", "digits"},
	} {
		if r := runArgs(t, append([]string{"recordio", "convert"}, args...)...); r.code != cli.ExitUsage || !strings.Contains(r.stderr, words) {
			t.Errorf("%v: exit code %d, %s; expected %q", args, r.code, r.stderr, words)
		}
	}
}
