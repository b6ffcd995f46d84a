package tfrecord_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"trainmaster/dataset/tfrecord"
	"trainmaster/scripts/prepared"
)

// python runs a script with the packages of scripts/requirements.txt.
func python(t *testing.T, script string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), prepared.Python(t), append([]string{"-c", script}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("python: %v\n%s", err, out)
	}
}

// The package tfrecord of PyPI reads a written file. It verifies no checksum, so the test does, with the package crc32c.
func TestPythonReadsWrittenFile(t *testing.T) {
	dir := t.TempDir()
	for _, c := range allCompressions[:2] { // the package cannot read zlib
		if err := os.WriteFile(filepath.Join(dir, c.String()), write(t, c, text(300)...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	python(t, `
import crc32c, gzip, os, struct, sys
from tfrecord import reader
want = [str(i).encode() * (i % 7) for i in range(300)]
for name, compression, opened in (("none", None, open), ("gzip", "gzip", gzip.open)):
    path = os.path.join(sys.argv[1], name)
    got = [bytes(record) for record in reader.tfrecord_iterator(path, compression_type=compression)]
    assert got == want, (name, len(got))
    masked = lambda b: ((crc := crc32c.crc32c(b)) >> 15 | crc << 17) + 0xa282ead8 & 0xffffffff
    with opened(path, "rb") as file:
        for record in want:
            length = struct.pack("<Q", len(record))
            frame = length + struct.pack("<I", masked(length)) + record + struct.pack("<I", masked(record))
            assert file.read(len(frame)) == frame, record
        assert file.read() == b""
`, dir)
}

// A file that the package tfrecord of PyPI wrote is read, with its checksums, and indexed.
func TestFileWrittenByPython(t *testing.T) {
	path := filepath.Join(t.TempDir(), "examples.tfrecord")
	python(t, `
import sys, tfrecord
writer = tfrecord.TFRecordWriter(sys.argv[1])
for i in range(100):
    writer.write({"name": (b"x" * i, "byte"), "label": (i, "int")})
writer.close()
`, path)
	f, err := tfrecord.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	records, err := collect(f.Records())
	if err != nil || len(records) != 100 || len(records[99]) < 99 {
		t.Errorf("read %d records, %v, expected 100", len(records), err)
	}
	index, err := f.Index(t.Context(), tfrecord.IndexOptions{RecordsPerChunk: 30})
	if err != nil || len(index) != 4 || index[3].Records != 10 {
		t.Errorf("found %+v, %v, expected 4 chunks", index, err)
	}
	if recognized, err := f.Recognize(); err != nil || !recognized {
		t.Errorf("recognized: %v, %v, expected a TFRecord file", recognized, err)
	}
}
