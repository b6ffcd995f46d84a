package netrpc_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"trainmaster/master"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

// longPath returns a path of about n bytes in a new directory.
func longPath(t *testing.T, n int) string {
	t.Helper()
	dir := t.TempDir()
	for len(dir) < n-200 {
		dir = filepath.Join(dir, strings.Repeat("d", 200))
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "data")
}

// F60: a client that only knows GetTask returns each task as a whole. Tasks with many chunks and long paths are
// grouped to fit a message, and a number of chunks that does not fit is refused.
func TestTaskOfManyLongPathsIsReturned(t *testing.T) {
	const chunks, pathBytes = 10_000, 3800 // with 1,250 chunks a task: 4.75 MB
	path := longPath(t, pathBytes)
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := recordio.NewWriter(file, recordio.WriterOptions{RecordsPerChunk: 1})
	for range chunks {
		if err := w.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}

	r := serve(t, 0, master.Config{Trainers: 1, ChunksPerTask: chunks})
	if err := r.ReportDataset(t.Context(), []string{path}); err == nil || !strings.Contains(err.Error(), "chunks-per-task: expected at most ") {
		t.Errorf("tasks of %d chunks: %v", chunks, err)
	}

	r = serve(t, 0, master.Config{Trainers: 1, Queue: taskqueue.Options{Passes: 1}})
	c := dial(t, r.Addr)
	if err := c.Call("RPCServer.ReportDataset", []string{path}, new(int)); err != nil {
		t.Fatal(err)
	}
	seen, finished := 0, taskqueue.Task{}
	for {
		var task taskqueue.Task
		if err := c.Call("RPCServer.GetTask", &finished, &task); err != nil {
			if !strings.HasPrefix(err.Error(), "job finished") {
				t.Fatal(err)
			}
			break
		}
		seen += len(task.Chunks)
		finished = task
	}
	if seen != chunks {
		t.Errorf("chunks: found %d, expected %d", seen, chunks)
	}
}
