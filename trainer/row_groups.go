package trainer

import (
	"fmt"
	"iter"

	"trainmaster/dataset"
	"trainmaster/dataset/parquet"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

// RowGroup is a row group of a Parquet file. It implements [io.ReaderAt] for a Parquet library: reads of the row group and of the footer are of memory.
type RowGroup struct {
	*parquet.Part
	Path string
	Skip int64 // rows at the beginning of the row group that are trained already
}

// RowGroups yields the row groups of a task of Parquet files, in their order, from Base on. A row group is in memory as it is stored: it was read
// by one range. Other parts of the file can be read until the next iteration. An error ends the row groups. A file that changed since it was indexed is an error, and so is a task of another format.
//
//	for group, err := range client.RowGroups(task) {
//		file, err := parquet.OpenFile(group, group.Size(), parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true))
//		rows := file.RowGroups()[group.Number].Rows()
func (c *Client) RowGroups(task *taskqueue.Task) iter.Seq2[RowGroup, error] {
	return func(yield func(RowGroup, error) bool) {
		c.chunksOf(task, c.Base(task), func(_ int, chunk taskqueue.Chunk, stamp dataset.Stamp, skip int64) bool {
			group, err := c.rowGroup(chunk, stamp)
			if err != nil {
				err = fmt.Errorf("task %d: %w", task.Index, err)
			}
			//guard:row-group-begins-at-base
			group.Skip = skip
			return yield(group, err) && err == nil
		})
	}
}

func (c *Client) rowGroup(chunk taskqueue.Chunk, stamp dataset.Stamp) (RowGroup, error) {
	if chunk.Index.Layout != recordio.Parquet {
		return RowGroup{}, fmt.Errorf("%s: expected a Parquet file, found the %v layout: use Records", recordio.DisplayName(chunk.Path), chunk.Index.Layout)
	}
	file, err := c.files.open(chunk.Path, chunk.Index.Layout, stamp)
	if err != nil {
		return RowGroup{}, err
	}
	part, err := file.RowGroup(chunk.Index)
	return RowGroup{Part: part, Path: chunk.Path}, err
}
