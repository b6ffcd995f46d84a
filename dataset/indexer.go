package dataset

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"trainmaster/recordio"
)

// Indexer reads the chunk indexes of the files of a listing. After an interruption it continues: finished files are
// remembered, by path, size and modification time, until a call succeeds. Its zero value is ready.
type Indexer struct {
	// Parallel is how many files are read together; zero means four for each processor.
	Parallel int
	// MaxChunkBytes is that of recordio.File, and the MaxRecordBytes of tfrecord.File.
	MaxChunkBytes int64
	// Progress, if set, is called with the number of files that are done; by one goroutine at a time.
	Progress func(done, total int)
	// Stores opens URLs; nil means DefaultStores.
	Stores *Stores

	mu   sync.Mutex
	done map[fileVersion][]recordio.Index // guarded by mu
}

// fileVersion is a file that was not replaced in between.
type fileVersion struct {
	path  string
	stamp Stamp
}

// Index returns the chunks of each file, in the order of the listing. A file that is damaged, has no records, or is not
// the listed one any more is an error; all files are read before errors are returned.
func (x *Indexer) Index(ctx context.Context, listing Listing) ([][]recordio.Index, error) {
	indexes := make([][]recordio.Index, len(listing.Files))
	parallel := x.Parallel
	if slices.ContainsFunc(listing.Files, func(f File) bool { return IsURL(f.Path) }) {
		parallel = cmp.Or(parallel, parallelObjects)
	}
	errs, err := forEach(ctx, len(listing.Files), parallel, x.Progress, func(i int) error {
		if IsRange(listing.Files[i].Path) {
			r, err := ParseRange(listing.Files[i].Path)
			if err == nil {
				indexes[i] = r.index()
			}
			return err
		}
		version := fileVersion{listing.Files[i].Path, listing.Files[i].Stamp()}
		if indexes[i] = x.remembered(version); indexes[i] != nil {
			return nil
		}
		index, err := x.indexFile(ctx, version)
		if err != nil {
			return err
		}
		indexes[i] = index
		x.remember(version, index)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("index %s: %w", files(len(listing.Files)), err)
	}
	if err := joinFiles(errs, func(i int) string { return listing.Files[i].Path }); err != nil {
		return nil, err
	}
	x.forget()
	return indexes, nil
}

func (x *Indexer) remembered(v fileVersion) []recordio.Index {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.done[v]
}

func (x *Indexer) remember(v fileVersion, index []recordio.Index) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.done == nil {
		x.done = make(map[fileVersion][]recordio.Index)
	}
	x.done[v] = index
}

func (x *Indexer) forget() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.done = nil
}

func (x *Indexer) indexFile(ctx context.Context, v fileVersion) ([]recordio.Index, error) {
	index, err := x.readIndex(ctx, v)
	// A stamp that is checked afterwards proves that the read bytes are of this file. A replaced file explains any error.
	if changed := Check(v.path, v.stamp); changed != nil {
		return nil, changed
	}
	if err != nil {
		return nil, err
	}
	for _, ix := range index {
		//guard:empty-chunk-skipped
		if ix.Records > 0 {
			return index, nil
		}
	}
	return nil, fmt.Errorf("%s: %w: %d empty chunks", v.path, ErrNoRecords, len(index))
}

func (x *Indexer) readIndex(ctx context.Context, v fileVersion) ([]recordio.Index, error) {
	file, err := cmp.Or(x.Stores, DefaultStores).openVersion(ctx, v)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	switch {
	case file.TFRecord != nil:
		file.TFRecord.MaxRecordBytes = x.MaxChunkBytes
	case file.RecordIO != nil:
		file.RecordIO.MaxChunkBytes = x.MaxChunkBytes
	}
	return file.Index(ctx)
}
