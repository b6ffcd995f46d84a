package tool_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"

	"trainmaster/dataset/tfrecord"
	"trainmaster/recordio/tool"
)

// tfRecordFile writes records to a TFRecord file and returns its path.
func tfRecordFile(t *testing.T, name string, c tfrecord.Compression, records ...string) string {
	t.Helper()
	var out bytes.Buffer
	w := tfrecord.NewWriter(&out, c)
	for _, r := range records {
		if err := w.Write([]byte(r)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The commands read TFRecord files of any name, together with RecordIO files.
func TestCommandsReadTFRecordFiles(t *testing.T) {
	other := filepath.Join(t.TempDir(), "a.rec")
	write(t, other, "one", "two")
	for _, test := range []struct {
		path, compression string
		chunks            int
	}{
		{tfRecordFile(t, "plain", tfrecord.None, "one", "two", "three"), "none", 2},
		{tfRecordFile(t, "a.tfrecord.gz", tfrecord.Gzip, "one", "two", "three"), "gzip", 1},
		{tfRecordFile(t, "packed", tfrecord.Zlib, "one", "two", "three"), "zlib", 1},
	} {
		paths := []string{other, test.path}
		info, err := os.Stat(test.path)
		if err != nil {
			t.Fatal(err)
		}
		var records []string
		if err := tool.Cat(t.Context(), paths, 0, func(_ string, _ int64, record []byte) error {
			records = append(records, string(record))
			return nil
		}); err != nil || strings.Join(records, " ") != "one two one two three" {
			t.Errorf("%s: cat found %q, %v", test.compression, records, err)
		}
		checks, err := tool.VerifyFiles(t.Context(), paths)
		if err != nil || len(checks) != 2 || !checks[1].OK || checks[1].Records != 3 {
			t.Errorf("%s: verify found %+v, %v", test.compression, checks, err)
		}
		stats, err := tool.StatFiles(t.Context(), paths)
		want := tool.Stat{Path: test.path, Layout: "tfrecord", Compression: test.compression, Chunks: 1, Records: 3, Bytes: info.Size()}
		if err != nil || len(stats) != 2 || stats[0].Layout != "first" || stats[1] != want {
			t.Errorf("%s: stat found %+v, %v, expected %+v", test.compression, stats, err, want)
		}
		rows, err := tool.IndexFiles(t.Context(), paths, tfrecord.IndexOptions{RecordsPerChunk: 2})
		if err != nil || len(rows) != 2+test.chunks {
			t.Fatalf("%s: index found %+v, %v, expected %d chunks", test.compression, rows, err, 2+test.chunks)
		}
		if test.chunks == 2 && !reflect.DeepEqual(rows[3], tool.ChunkRow{Path: test.path, Chunk: 1, Offset: 38, Size: 21, Records: 1, Compression: "none", Layout: "tfrecord"}) {
			t.Errorf("index found %+v", rows[3])
		}
	}
}

// A damaged TFRecord file is named with its record. If its first length is damaged, the name decides the format.
func TestVerifyFindsDamagedTFRecordFile(t *testing.T) {
	for _, test := range []struct {
		name    string
		flip    int // byte of the file
		want    string
		offset  int64
		records int64
	}{
		{"a", 36, "record 1, byte 19: bad checksum of the data", 19, 1},
		{"a.tfrecord-00000-of-00001", 0, "record 0, byte 0: bad checksum of the length", 0, 0},
		{"a", 0, "byte 0: bad magic number", 0, 0},
	} {
		path := tfRecordFile(t, test.name, tfrecord.None, "one", "two", "three")
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		data[test.flip] ^= 1
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		checks, err := tool.VerifyFiles(t.Context(), []string{path})
		if err == nil || !strings.Contains(err.Error(), path+": "+test.want) {
			t.Errorf("%s: found error %v, expected %q", test.name, err, test.want)
		}
		if len(checks) != 1 || checks[0].OK || checks[0].Offset == nil || *checks[0].Offset != test.offset || checks[0].Records != test.records {
			t.Errorf("%s: found %+v, expected damage at byte %d after %d records", test.name, checks, test.offset, test.records)
		}
	}
	path := tfRecordFile(t, "empty.tfrecord", tfrecord.None)
	if checks, err := tool.VerifyFiles(t.Context(), []string{path}); err != nil || !checks[0].OK || checks[0].Records != 0 {
		t.Errorf("a file without records: found %+v, %v", checks, err)
	}
	misnamed := filepath.Join(t.TempDir(), "b.tfrecord")
	write(t, misnamed, "one")
	if checks, err := tool.VerifyFiles(t.Context(), []string{misnamed}); err != nil || checks[0].Records != 1 {
		t.Errorf("a RecordIO file with another name: found %+v, %v", checks, err)
	}
}

func TestStatOfAParquetFileWithoutRowGroups(t *testing.T) {
	path := filepath.Join(t.TempDir(), "empty.parquet")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(parquet.NewGenericWriter[struct{ ID int64 }](f).Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	stats, err := tool.StatFiles(t.Context(), []string{path})
	if err != nil || len(stats) != 1 || stats[0].Layout != "parquet" || stats[0].Chunks != 0 {
		t.Errorf("expected a Parquet file without chunks, found %+v, %v", stats, err)
	}
}
