package grpcapi_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	library "github.com/parquet-go/parquet-go"

	"trainmaster/master"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

// Each row group of a task is a file of the message, with its number, its rows and the stamp of the file. A data proxy of the master is
// not named, because it reads no Parquet files.
func TestTasksOfParquetFilesOverGRPC(t *testing.T) {
	type row struct {
		N int64 `parquet:"n"`
	}
	var out bytes.Buffer
	w := library.NewGenericWriter[row](&out)
	for _, rows := range []int{3, 2, 4} {
		if _, err := w.Write(make([]row, rows)); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "a.parquet")
	if err := errors.Join(w.Close(), os.WriteFile(path, out.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	s := serve(t, 0, master.Config{ChunksPerTask: 2, Queue: taskqueue.Options{Passes: 1}})
	p := naming(t, s.Master, "127.0.0.1:1")
	if _, err := p.client.ReportDataset(t.Context(), &pb.ReportDatasetRequest{Paths: []string{path}}); err != nil {
		t.Fatal(err)
	}
	first := map[int64]int64{0: 0, 1: 3, 2: 5} // row of each row group
	rows := []int64{3, 2, 4}
	found := 0
	for spec := p.get(); spec.GetEnd() == nil; spec = p.push(&pb.TaskResult{TaskId: spec.GetTaskId(), Ask: &pb.TrainerInfo{TrainerId: 1}}).GetNext() {
		for _, f := range spec.GetTrainingTask().GetData().GetFiles().GetFiles() {
			found++
			if f.GetPath() != path || f.GetFormat() != pb.FileFormat_FILE_FORMAT_PARQUET || f.GetStamp().GetSize() != int64(out.Len()) || f.GetByteLength() != 0 ||
				f.GetStartRecord() != first[f.GetRowGroup()] || f.GetNumRecord() != rows[f.GetRowGroup()] || len(f.GetChunks().GetSizes()) != 1 {
				t.Errorf("found %v", f)
			}
			delete(first, f.GetRowGroup())
		}
	}
	if found != 3 || len(first) != 0 {
		t.Errorf("found %d row groups, expected 3; without %v", found, first)
	}
}
