package taskqueue

import "fmt"

// RecordLocation is the task and the chunk of a record.
type RecordLocation struct {
	Task  int
	Chunk Chunk
	In    int // its number in the chunk, from 0
}

// FindRecord returns the location of record n, from 0, of a file.
func (t *Table) FindRecord(path string, n int64) (RecordLocation, error) {
	for _, f := range t.files {
		if f.Path != path {
			continue
		}
		before := int64(0)
		for c := f.first; c < f.last; c++ {
			if records := int64(t.records[c]); n >= before+records {
				before += records
				continue
			}
			task := c / t.chunksPerTask
			return RecordLocation{Task: task, Chunk: t.TaskChunks(task)[c-task*t.chunksPerTask], In: int(n - before)}, nil
		}
		return RecordLocation{}, fmt.Errorf("file %q: expected a record from 0 to %d, found %d", path, before-1, n)
	}
	return RecordLocation{}, fmt.Errorf("no file %q among the %d of the dataset", path, len(t.files))
}
