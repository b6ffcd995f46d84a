package trainer

import (
	"fmt"
	"iter"

	"trainmaster/dataset"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

// files keeps the last file open, since consecutive chunks are often in one file.
type files struct {
	path  string
	stamp dataset.Stamp
	file  *dataset.Reader
}

// open returns the file at path, to read chunks of a layout. It returns an error if the file has changed since it was indexed.
func (f *files) open(path string, layout recordio.Layout, stamp dataset.Stamp) (*dataset.Reader, error) {
	//guard:trainer-checks-stamp
	if stamp != (dataset.Stamp{}) {
		if err := dataset.Check(path, stamp); err != nil {
			return nil, err
		}
	}
	if f.file != nil && f.path == path && f.stamp == stamp {
		return f.file, nil
	}
	if err := f.close(); err != nil {
		return nil, err
	}
	file, err := dataset.OpenAs(path, layout)
	if err != nil {
		return nil, err
	}
	f.path, f.stamp, f.file = path, stamp, file
	return file, nil
}

func (f *files) close() error {
	if f.file == nil {
		return nil
	}
	err := f.file.Close()
	f.file = nil
	return err
}

// Records yields the records of a task in their order, from Base on. A record is valid until the next iteration. An error ends the
// records. A file that changed since it was indexed is an error.
func (c *Client) Records(task *taskqueue.Task) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		stamps := c.stamps[task.Token]
		at, skip := 0, c.Base(task)
		for i, chunk := range task.Chunks {
			if i > 0 && chunk.Path != task.Chunks[i-1].Path {
				at++
			}
			if skip >= int64(chunk.Index.Records) {
				skip -= int64(chunk.Index.Records)
				continue
			}
			var stamp dataset.Stamp
			if at < len(stamps) {
				stamp = stamps[at]
			}
			file, err := c.files.open(chunk.Path, chunk.Index.Layout, stamp)
			if err != nil {
				yield(nil, fmt.Errorf("task %d: %w", task.Index, err))
				return
			}
			for record, err := range file.Chunk(chunk.Index) {
				if err == nil && skip > 0 {
					skip--
					continue
				}
				if err != nil {
					err = fmt.Errorf("task %d: %w", task.Index, err)
				}
				if !yield(record, err) || err != nil {
					return
				}
			}
		}
	}
}
