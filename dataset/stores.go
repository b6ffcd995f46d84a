package dataset

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sync"
	"time"

	"trainmaster/internal/objectstore"
	"trainmaster/recordio"
)

// Stores opens files in object stores. Files of one bucket share connections. The zero value is ready.
type Stores struct {
	// Cache keeps what was read, for later passes. nil: nothing is kept.
	Cache *objectstore.Cache
	// Window is the number of bytes that an open file reads ahead. Zero means 16 MiB.
	Window int64

	mu      sync.Mutex
	buckets map[string]*objectstore.Bucket // by the store of a location
}

// DefaultStores opens the files of Open.
var DefaultStores = new(Stores)

// storeStall is the time without a byte after which a connection to a store fails.
const storeStall = 10 * time.Second

// Object is an open file in an object store. Its reads return the bytes of one version of the object, or an error that wraps ErrReplaced.
type Object struct{ *objectstore.File }

// IsURL reports whether a path is a URL, of any scheme.
func IsURL(path string) bool { return objectstore.IsURL(path) }

// location parses the URL of a file, of a prefix or of a pattern.
func location(path string) (objectstore.Location, error) {
	l, err := objectstore.Parse(path)
	if errors.Is(err, objectstore.ErrURL) {
		err = fmt.Errorf("%w: %w", ErrScheme, err)
	}
	return l, err
}

// bucket returns the bucket of a location.
func (s *Stores) bucket(l objectstore.Location) (*objectstore.Bucket, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.buckets[l.Store]; b != nil {
		return b, nil
	}
	b, err := objectstore.OpenStore(l.Store, storeStall)
	if err != nil {
		return nil, err
	}
	if s.buckets == nil {
		s.buckets = map[string]*objectstore.Bucket{}
	}
	s.buckets[l.Store] = b
	return b, nil
}

// Close closes all connections. Files must be closed before.
func (s *Stores) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, b := range s.buckets {
		errs = append(errs, b.Close())
	}
	s.buckets = nil
	return errors.Join(errs...)
}

// objectAt parses the URL of an object.
func (s *Stores) objectAt(path string) (objectstore.Location, *objectstore.Bucket, error) {
	l, err := location(path)
	if err == nil && (l.Pattern != "" || l.IsPrefix()) {
		err = fmt.Errorf("%s: expected the URL of an object, found a pattern or a prefix", path)
	}
	if err != nil {
		return l, nil, err
	}
	b, err := s.bucket(l)
	return l, b, err
}

// Open opens the object of a URL. If the stamp is not zero, the object must have it. Reads end with ctx. window is the number of bytes to
// read ahead, 0: Window of the Stores.
func (s *Stores) Open(ctx context.Context, path string, stamp Stamp, window int64) (*Object, error) {
	l, b, err := s.objectAt(path)
	if err != nil {
		return nil, err
	}
	v := objectstore.Info{Size: stamp.Size, Stamp: stamp.ETag}
	switch {
	case stamp == (Stamp{}):
		if v, _, err = b.Stat(ctx, l.Key, nil); err != nil {
			return nil, err
		}
	//guard:object-without-etag
	case stamp.ETag == "":
		return nil, fmt.Errorf("%s: expected a stamp with an ETag, found %s: a master of this release must register the dataset", path, stamp)
	}
	if window == 0 {
		window = s.Window
	}
	return &Object{b.Open(ctx, l.Key, v, window, s.Cache)}, nil
}

// ReadAt implements [io.ReaderAt].
func (o *Object) ReadAt(p []byte, off int64) (int, error) {
	n, err := o.File.ReadAt(p, off)
	return n, replaced(err)
}

// Reread reports whether another read may return other bytes, if err is of a damaged file: there was a cache, and it is used no longer.
func (o *Object) Reread(err error) bool {
	return o != nil && isDamage(err) && o.File.Reread()
}

// isDamage reports whether err is of the bytes of a file.
func isDamage(err error) bool {
	return slices.ContainsFunc([]error{
		recordio.ErrTruncated, recordio.ErrBadMagic, recordio.ErrBadChecksum, recordio.ErrBadCompressor, recordio.ErrMalformed, recordio.ErrTooLarge, recordio.ErrChanged,
	}, func(cause error) bool { return errors.Is(err, cause) })
}

// Stamp is the stamp of the version that is read.
func (o *Object) Stamp() Stamp { return stampOf(o.Info()) }

func stampOf(v objectstore.Info) Stamp {
	s := Stamp{Size: v.Size, ETag: v.Stamp}
	if !v.ModTime.IsZero() {
		s.ModTime = v.ModTime.UnixNano()
	}
	return s
}

// replaced explains an error of an object that is not the listed version any more.
func replaced(err error) error {
	if errors.Is(err, objectstore.ErrReplaced) || errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrReplaced, err)
	}
	return err
}

// look checks the object of a URL and reads its header.
func (s *Stores) look(ctx context.Context, path string) (File, error) {
	l, b, err := s.objectAt(path)
	if err != nil {
		return File{}, err
	}
	f := File{Path: path}
	v, _, err := b.Stat(ctx, l.Key, f.Header[:])
	if err != nil {
		return File{}, err
	}
	if v.Size == 0 {
		return File{}, &recordio.Error{File: path, Err: recordio.ErrEmpty}
	}
	f.Size, f.ModTime, f.ETag = v.Size, v.ModTime, v.Stamp
	return f, nil
}

// list returns the URLs of the objects that a location stands for, sorted.
func (s *Stores) list(ctx context.Context, l objectstore.Location) (paths []string, err error) {
	if l.Pattern == "" && !l.IsPrefix() {
		return []string{l.String()}, nil
	}
	b, err := s.bucket(l)
	if err != nil {
		return nil, err
	}
	for key, err := range b.Matching(ctx, l) {
		if err != nil {
			return nil, err
		}
		paths = append(paths, l.At(key).String())
	}
	slices.Sort(paths)
	return paths, nil
}

// readerAt is an open file.
type readerAt interface {
	io.ReaderAt
	io.Closer
}

// open opens a regular file of the local file system, or an object.
func (s *Stores) open(ctx context.Context, path string, stamp Stamp) (file readerAt, object *Object, size int64, err error) {
	if !IsURL(path) {
		local, size, err := recordio.OpenRegular(path)
		return local, nil, size, err
	}
	if object, err = s.Open(ctx, path, stamp, 0); err != nil {
		return nil, nil, 0, replaced(err)
	}
	return object, object, object.Size(), nil
}

// Expect announces that the bytes of a chunk will be read, after the bytes of earlier calls. An object in a store is then read ahead, except a
// row group, whose bytes are known after the footer was read.
func (r *Reader) Expect(ix recordio.Index) {
	if r.Parquet == nil {
		r.expect(ix.Offset, ix.End()-ix.Offset)
	}
}

func (r *Reader) expect(off, n int64) {
	if r.object != nil {
		r.object.Expect(off, n)
	}
}
