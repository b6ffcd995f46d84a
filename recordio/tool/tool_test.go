package tool_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"trainmaster/recordio"
	"trainmaster/recordio/tool"
)

// write writes lines to a new file with one record in each chunk.
func write(t *testing.T, path string, lines ...string) {
	t.Helper()
	_, err := tool.WriteFiles(t.Context(), tool.Output{
		Path: path, Stdin: strings.NewReader(strings.Join(lines, "\n")), Options: recordio.WriterOptions{RecordsPerChunk: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestDamagedFileDoesNotStopVerification(t *testing.T) {
	dir := t.TempDir()
	damaged, whole := filepath.Join(dir, "damaged"), filepath.Join(dir, "whole")
	write(t, damaged, "one", "two", "three")
	write(t, whole, "one", "two", "three")
	data, err := os.ReadFile(damaged)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-1] ^= 1
	if err := os.WriteFile(damaged, data, 0o600); err != nil {
		t.Fatal(err)
	}
	checks, err := tool.VerifyFiles(t.Context(), []string{damaged, whole})
	if err == nil || !strings.Contains(err.Error(), damaged) {
		t.Errorf("found error %v, expected the name of the damaged file", err)
	}
	if len(checks) != 2 || checks[0].OK || checks[0].Records != 2 || checks[0].Offset == nil || !checks[1].OK || checks[1].Records != 3 {
		t.Errorf("found %+v, expected damage after 2 records and 3 records", checks)
	}
}

// Without Force a file stays as it is, and no temporary file remains.
func TestWriteFilesKeepsExistingFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	write(t, path, "one")
	output := tool.Output{Path: path, Stdin: strings.NewReader("two"), Force: false}
	if _, err := tool.WriteFiles(t.Context(), output); err == nil || !strings.Contains(err.Error(), "--force") {
		t.Errorf("found error %v, expected a refusal", err)
	}
	output.Force = true
	if _, err := tool.WriteFiles(t.Context(), output); err != nil {
		t.Fatal(err)
	}
	var records []string
	err := tool.Cat(t.Context(), []string{path}, 0, func(_ string, _ int64, record []byte) error {
		records = append(records, string(record))
		return nil
	})
	if err != nil || len(records) != 1 || records[0] != "two" {
		t.Errorf("found %q, %v, expected the forced content", records, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("found %v, %v, expected one file", left, err)
	}
}

func TestCatStopsAtLimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	write(t, path, "one", "two", "three")
	n := 0
	if err := tool.Cat(t.Context(), []string{path, path}, 4, func(string, int64, []byte) error { n++; return nil }); err != nil || n != 4 {
		t.Errorf("found %d records, %v, expected 4", n, err)
	}
}
