package taskqueue

import (
	"fmt"

	"trainmaster/recordio"
)

// RecordLocation is the task and the chunk of a record.
type RecordLocation struct {
	Task  int
	Chunk Chunk
	In    int // its number in the chunk, from 0
}

// RecordRange is a run of records of one file.
type RecordRange struct {
	File
	Layout         recordio.Layout
	First, Records int64 // the first record is number First of the file, from 0
	Offset, Length int64 // of the stored bytes; 0 of a range and of a row group
	RowGroup       int64 // of a Parquet file, from 0
}

// IsTFRecord reports whether the file is in TFRecord format. Other files are in RecordIO format.
func (r *RecordRange) IsTFRecord() bool { return r.Layout == recordio.TFRecord }

// IsRange reports whether the records have numbers only, and no file.
func (r *RecordRange) IsRange() bool { return r.Layout == recordio.Range }

// IsParquet reports whether the records are the rows of a row group.
func (r *RecordRange) IsParquet() bool { return r.Layout == recordio.Parquet }

// TaskRanges returns the records of a task, 0 <= index < Tasks(): a range for each file and for each row group of a Parquet file,
// in their order.
func (t *Table) TaskRanges(index int) []RecordRange {
	first, last := index*t.chunksPerTask, min((index+1)*t.chunksPerTask, len(t.sizes))
	at := t.fileOf(first)
	before := t.recordsBefore(first)
	var ranges []RecordRange
	for first < last {
		f := &t.files[at]
		r := RecordRange{File: f.File, Layout: recordio.Layout(f.layout), First: before, Offset: t.offset(first)}
		end := min(last, f.last)
		if r.IsParquet() {
			r.RowGroup, end = r.Offset, first+1
		}
		for ; first < end; first++ {
			r.Records += int64(t.records[first])
			r.Length += f.extent(t.sizes[first], t.records[first])
		}
		if r.IsRange() || r.IsParquet() {
			r.Offset, r.Length = 0, 0
		}
		ranges = append(ranges, r)
		if before += r.Records; first == f.last {
			at, before = at+1, 0
		}
	}
	return ranges
}

// recordsBefore returns the number of records in the file of a chunk before it, from the nearest anchor.
func (t *Table) recordsBefore(chunk int) (n int64) {
	first := t.files[t.fileOf(chunk)].first
	from := chunk / anchorEvery * anchorEvery
	if from > first {
		n = t.counts[chunk/anchorEvery]
	} else {
		from = first
	}
	for _, records := range t.records[from:chunk] {
		n += int64(records)
	}
	return n
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
