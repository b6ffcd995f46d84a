package agent

import (
	"context"
	"sync"

	"trainmaster/dataset"
	"trainmaster/recordio"
)

// files keeps the files open that were read last.
type files struct {
	stores *dataset.Stores

	mu   sync.Mutex
	list []*openFile // the last used one is the last
}

// keptFiles stay open without a reader.
const keptFiles = 8

type openFile struct {
	path   string
	stamp  dataset.Stamp
	layout recordio.Layout
	reader *dataset.Reader
	users  int

	reading sync.Mutex // of an object in a store, whose reads ahead are of one reader
}

// open returns a file, until done. It returns an error if the file has changed since it was indexed.
func (f *files) open(path string, layout recordio.Layout, stamp dataset.Stamp) (*openFile, error) {
	//guard:agent-checks-stamp
	if stamp != (dataset.Stamp{}) {
		if err := dataset.Check(path, stamp); err != nil {
			return nil, err
		}
	}
	if file := f.find(path, layout, stamp); file != nil {
		return file, nil
	}
	reader, err := f.stores.OpenReaderAs(context.Background(), path, layout, stamp)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	file := &openFile{path: path, stamp: stamp, layout: layout, reader: reader, users: 1}
	f.list = append(f.list, file)
	f.trimLocked()
	return file, nil
}

func (f *files) find(path string, layout recordio.Layout, stamp dataset.Stamp) *openFile {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, file := range f.list {
		if file.path == path && file.layout == layout && file.stamp == stamp {
			file.users++
			f.list = append(append(f.list[:i], f.list[i+1:]...), file)
			return file
		}
	}
	return nil
}

func (f *files) done(file *openFile) {
	f.mu.Lock()
	defer f.mu.Unlock()
	file.users--
	f.trimLocked()
}

func (f *files) trimLocked() {
	for i := 0; i < len(f.list) && len(f.list) > keptFiles; {
		if f.list[i].users > 0 {
			i++
			continue
		}
		_ = f.list[i].reader.Close() // it was only read
		f.list = append(f.list[:i], f.list[i+1:]...)
	}
}

func (f *files) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, file := range f.list {
		_ = file.reader.Close() // it was only read
	}
	f.list = nil
}

// load reads a chunk into memory that alloc makes, see [dataset.Reader.Load].
func (f *openFile) load(ix recordio.Index, alloc func(size int) ([]byte, error)) (content []byte, gap int, err error) {
	if dataset.IsURL(f.path) {
		f.reading.Lock()
		defer f.reading.Unlock()
	}
	return f.reader.Load(ix, alloc)
}
