package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"trainmaster/cmd/internal/cli"
	"trainmaster/recordio/tool"
)

// recordioRun runs one command line below `master recordio`.
func recordioRun(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := recordioCommand()
	cli.FinishTree(cmd)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetIn(strings.NewReader(stdin))
	var out, errs bytes.Buffer
	code = execute(t.Context(), cmd, args, &out, &errs)
	return code, out.String(), errs.String()
}

func mustRecordio(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	code, stdout, stderr := recordioRun(t, stdin, args...)
	if code != cli.ExitOK {
		t.Fatalf("recordio %q exits with %d: %s", args, code, stderr)
	}
	return stdout
}

func decode[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return v
}

func TestRecordioWriteAndRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "words.rec")
	const lines = "one\ntwo\r\n\nfour\n"
	for _, flags := range [][]string{
		{"--compression", "none"}, {"--compression", "snappy", "--layout", "second"}, {"--compression", "gzip", "--records-per-chunk", "3"},
	} {
		result := decode[tool.Written](t, mustRecordio(t, lines, append([]string{"write", "--force", "-o", "json", path}, flags...)...))
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if result.Path != path || result.Records != 4 || result.Bytes != info.Size() || result.Chunks < 1 {
			t.Errorf("%q: write says %+v", flags, result)
		}
		if got := mustRecordio(t, "", "cat", path); got != lines {
			t.Errorf("%q: cat prints %q", flags, got)
		}
		if got := mustRecordio(t, "", "verify", path); !strings.Contains(got, "ok") {
			t.Errorf("%q: verify prints %q", flags, got)
		}
	}
	stats := decode[[]tool.Stat](t, mustRecordio(t, "", "stat", "-o", "json", path))
	want := tool.Stat{Path: path, Layout: "first", Compression: "gzip", Chunks: 2, Records: 4, Bytes: stats[0].Bytes}
	if len(stats) != 1 || stats[0] != want {
		t.Errorf("stat prints %+v, want %+v", stats, want)
	}
	rows := decode[[]tool.ChunkRow](t, mustRecordio(t, "", "index", "-o", "json", path))
	if len(rows) != 2 || rows[1].Records != 1 || rows[1].Offset != rows[0].Size+20 {
		t.Errorf("index prints %+v", rows)
	}
	records := decode[[]tool.CatRow](t, mustRecordio(t, "", "cat", "-o", "json", "--limit", "2", path))
	if len(records) != 2 || *records[1].Text != "two\r" {
		t.Errorf("cat prints %+v", records)
	}
}

func TestRecordioWriteKeepsWhatExists(t *testing.T) {
	path := filepath.Join(t.TempDir(), "words.rec")
	mustRecordio(t, "kept\n", "write", path)
	if code, _, stderr := recordioRun(t, "new\n", "write", path); code != cli.ExitFailed || !strings.Contains(stderr, "--force") {
		t.Errorf("write over a file exits with %d: %s", code, stderr)
	}
	if code, _, stderr := recordioRun(t, "", "write", "--force", path); code != cli.ExitFailed || !strings.Contains(stderr, "no lines") {
		t.Errorf("write of nothing exits with %d: %s", code, stderr)
	}
	if got := mustRecordio(t, "", "cat", path); got != "kept\n" {
		t.Errorf("the file now holds %q", got)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("the directory holds %v, %v", entries, err)
	}
}

// TestRecordioVerifyNamesDamage: the exit code, the file and the offset, in words and in fields.
func TestRecordioVerifyNamesDamage(t *testing.T) {
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good.rec"), filepath.Join(dir, "bad.rec")
	for _, path := range []string{good, bad} {
		mustRecordio(t, "one\ntwo\nthree\n", "write", "--records-per-chunk", "1", path)
	}
	content, err := os.ReadFile(bad)
	if err != nil {
		t.Fatal(err)
	}
	content[2*27+22]++ // in the third chunk
	if err := os.WriteFile(bad, content, 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := recordioRun(t, "", "verify", "-o", "json", bad, good)
	if code != cli.ExitFailed || !strings.Contains(stderr, bad+": byte 54: bad checksum") {
		t.Errorf("verify exits with %d: %s", code, stderr)
	}
	checks := decode[[]tool.Verification](t, stdout)
	if len(checks) != 2 || checks[0].OK || *checks[0].Offset != 54 || checks[0].Records != 2 || !checks[1].OK {
		t.Errorf("verify prints %s", stdout)
	}
}

func TestRecordioConvert(t *testing.T) {
	prefix := filepath.Join(t.TempDir(), "digits")
	code, stdout, stderr := recordioRun(t, "", "convert", "--format", "csv", "--shards", "2", "--held-out", "0.2", "../../testdata/digits.csv.gz", prefix)
	if code != cli.ExitOK || !strings.Contains(stderr, "converted 1797 of 1797") || !strings.Contains(stdout, "1438") {
		t.Fatalf("convert exits with %d: %s%s", code, stdout, stderr)
	}
	stats := decode[[]tool.Stat](t, mustRecordio(t, "", "stat", "-o", "json", prefix+"-00000-of-00002", prefix+"-00001-of-00002", prefix+"-test-00000-of-00001"))
	if stats[0].Records+stats[1].Records != 1438 || stats[2].Records != 359 {
		t.Errorf("the shards are %+v", stats)
	}
}

func TestRecordioUsage(t *testing.T) {
	for _, args := range [][]string{
		{"stat"}, {"verify"}, {"write"}, {"cat", "--limit", "-1", "x"}, {"write", "--chunk-bytes", "-1", "x"}, {"write", "--compression", "lz4", "x"},
		{"convert", "--format", "csv", "only-one"}, {"convert", "--format", "idx", "a", "b"}, {"stat", "-o", "xml", "x"},
	} {
		if code, _, stderr := recordioRun(t, "", args...); code != cli.ExitUsage {
			t.Errorf("recordio %q exits with %d: %s", args, code, stderr)
		}
	}
	missing := filepath.Join(t.TempDir(), "missing")
	for _, command := range []string{"stat", "verify", "index", "cat"} {
		if code, _, stderr := recordioRun(t, "", command, missing); code != cli.ExitFailed || !strings.Contains(stderr, missing) {
			t.Errorf("recordio %s of a missing file exits with %d: %s", command, code, stderr)
		}
	}
}

// Shards of an earlier conversion are training data: without --force they are not overwritten.
func TestConvertKeepsShards(t *testing.T) {
	args := []string{"recordio", "convert", "../../testdata/digits.csv.gz", filepath.Join(t.TempDir(), "digits")}
	runArgs(t, args...).wants(t, cli.ExitOK)
	runArgs(t, args...).wants(t, cli.ExitFailed, "digits-00000-of-00001 exists", "--force replaces them")
	runArgs(t, append(args, "--force")...).wants(t, cli.ExitOK)
}

func TestRecordioOfAFileThatIsNotThere(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.rec")
	for _, command := range []string{"stat", "index"} {
		for _, format := range []string{"table", "json"} {
			r := runArgs(t, "recordio", command, "-o", format, missing)
			r.wants(t, cli.ExitFailed, missing)
			if r.stdout != "" {
				t.Errorf("%s: standard output has %q", command, r.stdout)
			}
		}
	}
	if r := runArgs(t, "recordio", "verify", missing); !strings.Contains(r.stdout, "unreadable") || strings.Contains(r.stdout, "damaged") {
		t.Errorf("verify says %s", r.stdout)
	}
}

// More shards than this process may have open are refused before any is created.
func TestRecordioWriteRefusesMoreShardsThanOpenFiles(t *testing.T) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if limit.Cur >= tool.MostShards {
		t.Skipf("this process may open %d files, more than any number of shards", limit.Cur)
	}
	dir := t.TempDir()
	code, _, stderr := recordioRun(t, "a\n", "write", "--shards", strconv.Itoa(int(limit.Cur)), filepath.Join(dir, "x"))
	if code != cli.ExitUsage || !strings.Contains(stderr, "expected at most "+strconv.Itoa(int(limit.Cur)-tool.SpareFiles)) || !strings.Contains(stderr, "ulimit -n") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("found %v in the directory, %v", left, err)
	}
}
