package trainer

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"

	"trainmaster/dataset"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

// files keeps the last file open, since consecutive chunks are often in one file. It opens the first object of the next task ahead.
type files struct {
	stores *dataset.Stores
	openFile

	mu    sync.Mutex
	ahead openFile // guarded by mu
	ended bool     // guarded by mu
}

type openFile struct {
	path  string
	stamp dataset.Stamp
	file  *dataset.Reader // nil: none
}

// open returns the file at path, to read chunks of a layout. It returns an error if the file has changed since it was indexed.
func (f *files) open(path string, layout recordio.Layout, stamp dataset.Stamp) (*dataset.Reader, error) {
	//guard:trainer-checks-stamp
	if stamp != (dataset.Stamp{}) {
		if err := dataset.Check(path, stamp); err != nil {
			return nil, err
		}
	}
	next := f.takeAhead()
	if next.file == nil || next.path != path || next.stamp != stamp {
		if err := next.close(); err != nil {
			return nil, err
		}
		if f.file != nil && f.path == path && f.stamp == stamp {
			return f.file, nil
		}
		file, err := f.stores.OpenReaderAs(context.Background(), path, layout, stamp)
		if err != nil {
			return nil, err
		}
		next = openFile{path, stamp, file}
	}
	former := f.openFile
	f.openFile = next
	return next.file, former.close()
}

func (f *files) takeAhead() openFile {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := f.ahead
	f.ahead = openFile{}
	return next
}

// prepare begins to read the chunks of a task that are in its first file, if that is an object in a store. Errors appear when the task is read.
func (f *files) prepare(task *taskqueue.Task, stamps []dataset.Stamp) {
	if len(task.Chunks) == 0 || len(stamps) == 0 || !dataset.IsURL(task.Chunks[0].Path) {
		return
	}
	first := task.Chunks[0]
	file, err := f.stores.OpenReaderAs(context.Background(), first.Path, first.Index.Layout, stamps[0])
	if err != nil {
		return
	}
	expect(file, task.Chunks)
	f.mu.Lock()
	former := f.ahead
	f.ahead = openFile{first.Path, stamps[0], file}
	if f.ended {
		former, f.ahead = f.ahead, openFile{}
	}
	f.mu.Unlock()
	former.close() //nolint:errcheck // of an object, which has no error
}

// expect announces the chunks of the first file.
func expect(file *dataset.Reader, chunks []taskqueue.Chunk) {
	for _, chunk := range chunks {
		if chunk.Path != chunks[0].Path {
			return
		}
		file.Expect(chunk.Index)
	}
}

func (f *files) close() error {
	f.mu.Lock()
	f.ended = true
	f.mu.Unlock()
	next, former := f.takeAhead(), f.openFile
	f.openFile = openFile{}
	return errors.Join(next.close(), former.close())
}

func (f *openFile) close() error {
	if f.file == nil {
		return nil
	}
	return f.file.Close()
}

// chunksOf calls use for the chunks of a task from the record base on, with the stamp of their file and the number of records of the chunk before it.
func (c *Client) chunksOf(task *taskqueue.Task, base int64, use func(i int, chunk taskqueue.Chunk, stamp dataset.Stamp, skip int64) (more bool)) {
	chunksFrom(task, c.stamps[task.Token], base, use)
}

// chunksFrom is chunksOf with the stamps of the files of the task.
func chunksFrom(task *taskqueue.Task, stamps []dataset.Stamp, base int64, use func(i int, chunk taskqueue.Chunk, stamp dataset.Stamp, skip int64) (more bool)) {
	at, skip := 0, base
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
		if !use(i, chunk, stamp, skip) {
			return
		}
		skip = 0
	}
}

// Records yields the records of a task in their order, from Base on. With Config.ShuffleRecords, the order of a training task is a
// permutation. A record is valid until the next iteration. An error ends the records. A file that changed since it was indexed is an error.
func (c *Client) Records(task *taskqueue.Task) iter.Seq2[[]byte, error] {
	if c.config.ShuffleRecords != 0 && task.Token.Kind == taskqueue.Training {
		return c.shuffled(task)
	}
	return c.inFileOrder(task, c.Base(task))
}

// inFileOrder yields the records of a task in the order of its files, from the record base on.
func (c *Client) inFileOrder(task *taskqueue.Task, base int64) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		c.files.records(task, c.stamps[task.Token], base)(yield)
	}
}

// records yields the records of a task from base on.
func (f *files) records(task *taskqueue.Task, stamps []dataset.Stamp, base int64) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		chunksFrom(task, stamps, base, func(i int, chunk taskqueue.Chunk, stamp dataset.Stamp, skip int64) bool {
			file, err := f.open(chunk.Path, chunk.Index.Layout, stamp)
			if err != nil {
				yield(nil, fmt.Errorf("task %d: %w", task.Index, err))
				return false
			}
			if i == 0 || chunk.Path != task.Chunks[i-1].Path {
				expect(file, task.Chunks[i:])
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
					return false
				}
			}
			return true
		})
	}
}
