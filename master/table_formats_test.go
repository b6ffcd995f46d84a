package master_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"trainmaster/dataset"
	"trainmaster/dataset/tfrecord"
	"trainmaster/master"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

// writeIn writes records to a file of format 0 (RecordIO) or a compression of TFRecord + 1.
func writeIn(t *testing.T, path string, format int, r *rand.Rand, records [][]byte) {
	t.Helper()
	var content bytes.Buffer
	var w interface {
		Write([]byte) error
		Close() error
	} = recordio.NewWriter(&content, recordio.WriterOptions{RecordsPerChunk: 1 + r.IntN(9), Compression: recordio.Compression(r.IntN(3))})
	if format > 0 {
		w = tfrecord.NewWriter(&content, tfrecord.Compression(format-1))
	}
	for _, record := range records {
		if err := w.Write(record); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), os.WriteFile(path, content.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// The tasks of random datasets have all records in the order of the files, in both formats and mixed, also from a stored table. A
// dataset has the same records in the same order in each format.
func TestTasksOfBothFormats(t *testing.T) {
	for seed := range uint64(6) {
		r := rand.New(rand.NewPCG(seed, 1))
		contents := make([][][]byte, 1+r.IntN(6))
		var want []string
		for i := range contents {
			contents[i] = make([][]byte, 1+r.IntN(40))
			for n := range contents[i] {
				contents[i][n] = fmt.Appendf(nil, "file %d, record %d %s", i, n, make([]byte, r.IntN(100_000)))
				want = append(want, string(contents[i][n]))
			}
		}
		for _, formats := range [][]int{{0}, {1}, {0, 1, 2, 3}} {
			dir := t.TempDir()
			for i, records := range contents {
				writeIn(t, filepath.Join(dir, fmt.Sprintf("part-%d", i)), formats[r.IntN(len(formats))], r, records)
			}
			listing, err := dataset.Source{}.List(t.Context(), []string{filepath.Join(dir, "*")})
			if err != nil {
				t.Fatal(err)
			}
			table, err := master.TableOf(t.Context(), &dataset.Indexer{}, listing)
			if err != nil {
				t.Fatal(err)
			}
			stored := taskqueue.NewTable(0)
			for first, size := 0, 1+r.IntN(5); first < table.Chunks(); first += size {
				p := table.Part(first, min(size, table.Chunks()-first))
				if err := stored.AddPart(&p); err != nil {
					t.Fatal(err)
				}
			}
			stored.Group(1 + r.IntN(4))
			var found []string
			for task := range stored.Tasks() {
				for _, chunk := range stored.TaskChunks(task) {
					found = append(found, recordsOf(t, chunk)...)
				}
			}
			if !slices.Equal(found, want) {
				t.Fatalf("seed %d, formats %v: the tasks have %d records, expected the %d of the files in their order", seed, formats, len(found), len(want))
			}
		}
	}
}

func recordsOf(t *testing.T, chunk taskqueue.Chunk) (records []string) {
	t.Helper()
	file, err := dataset.OpenAs(chunk.Path, chunk.Index.Layout, dataset.Stamp{})
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for record, err := range file.Chunk(chunk.Index) {
		if err != nil {
			t.Fatalf("%+v: %v", chunk, err)
		}
		records = append(records, string(record))
	}
	return records
}
