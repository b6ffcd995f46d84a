package taskqueue

import "fmt"

// RecordPlace is where a record of a dataset is: the task that it is in, and its chunk.
type RecordPlace struct {
	Task  int
	Chunk Chunk
	In    int // its number in the chunk, from 0
}

// FindRecord returns the place of record n, from 0, of a file.
func (t *Table) FindRecord(path string, n int64) (RecordPlace, error) {
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
			return RecordPlace{Task: task, Chunk: t.TaskChunks(task)[c-task*t.chunksPerTask], In: int(n - before)}, nil
		}
		return RecordPlace{}, fmt.Errorf("file %q: expected a record from 0 to %d, found %d", path, before-1, n)
	}
	return RecordPlace{}, fmt.Errorf("no file %q among the %d of the dataset", path, len(t.files))
}
