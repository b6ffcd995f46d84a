package objectstore

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
)

const (
	// DefaultWindow is the number of bytes that a File reads ahead.
	DefaultWindow = 16 << 20

	piecesOfWindow = 8
	leastPiece     = 256 << 10
	mostCached     = 4096
)

// span is a range of an object.
type span struct {
	off int64
	n   int
}

// File reads one version of an object by ranges. Expect starts parallel requests for bytes that will be read in order; at most a window
// of them is in memory. Other reads are one request each. Several goroutines may call its methods.
type File struct {
	bucket *Bucket
	key    string
	info   Info
	window int64

	ctx    context.Context //nolint:containedctx // io.ReaderAt has none
	cancel context.CancelFunc
	owned  sync.WaitGroup

	mu       sync.Mutex
	cache    *Cache     // nil: none
	cached   []span     // ranges with an entry in cache: the last mostCached at least
	requests []*request // in the order of Expect: the requests that have begun are first
	begun    int        // of requests
	ahead    int64      // bytes of requests that have begun
}

// request is a range that is read ahead.
type request struct {
	off, n int64
	cancel context.CancelFunc
	done   chan struct{} // closed when data or err is set
	data   []byte
	err    error
}

// Open returns a File of the version that Stat returned. window is the number of bytes to read ahead, 0: DefaultWindow. Reads end with
// ctx, and with Close.
func (b *Bucket) Open(ctx context.Context, key string, v Info, window int64, cache *Cache) *File {
	if window == 0 {
		window = DefaultWindow
	}
	f := &File{bucket: b, key: key, info: v, window: window, cache: cache}
	f.ctx, f.cancel = context.WithCancel(ctx)
	return f
}

// Size is the number of bytes of the object.
func (f *File) Size() int64 { return f.info.Size }

// Info is the version that is read.
func (f *File) Info() Info { return f.info }

// Close ends all requests and waits for them.
func (f *File) Close() error {
	f.cancel()
	f.owned.Wait()
	return nil
}

// Expect announces that the n bytes from off on will be read, after the bytes of earlier calls. Bytes that were announced and not read yet
// are not requested again.
func (f *File) Expect(off, n int64) {
	n = min(n, f.info.Size-off)
	f.mu.Lock()
	defer f.mu.Unlock()
	if n <= 0 || f.expectedLocked(off, n) {
		return
	}
	piece := max(f.window/piecesOfWindow, leastPiece)
	for end := off + n; off < end; off += piece {
		f.requests = append(f.requests, &request{off: off, n: min(piece, end-off)})
	}
	f.beginLocked()
}

// expectedLocked reports whether the bytes were announced and not read.
func (f *File) expectedLocked(off, n int64) bool {
	end := off + n
	for _, r := range f.requests {
		if off >= r.off && off < r.off+r.n {
			off = r.off + r.n
		}
	}
	return off >= end
}

// beginLocked begins requests while the window has room.
func (f *File) beginLocked() {
	for f.begun < len(f.requests) && (f.ahead == 0 || f.ahead+f.requests[f.begun].n <= f.window) {
		r := f.requests[f.begun]
		f.begun++
		f.ahead += r.n
		var ctx context.Context
		ctx, r.cancel = context.WithCancel(f.ctx)
		r.done = make(chan struct{})
		f.owned.Go(func() {
			defer close(r.done)
			data := make([]byte, r.n)
			if r.err = f.read(ctx, data, r.off); r.err == nil {
				r.data = data
			}
		})
	}
}

// dropLocked drops the first n requests.
func (f *File) dropLocked(n int) {
	for _, r := range f.requests[:min(n, f.begun)] {
		r.cancel()
		f.ahead -= r.n
	}
	f.begun = max(f.begun-n, 0)
	f.requests = f.requests[n:]
	f.beginLocked()
}

// take returns the request that has the byte at off, and drops the requests before it: the reader has passed them. It returns nil for a
// byte that was not announced.
func (f *File) take(off int64) *request {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, r := range f.requests {
		if off >= r.off && off < r.off+r.n {
			f.dropLocked(i)
			return r
		}
	}
	return nil
}

// passed drops a request after its last byte was read.
func (f *File) passed(r *request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.requests) > 0 && f.requests[0] == r {
		f.dropLocked(1)
	}
}

// ReadAt implements [io.ReaderAt].
func (f *File) ReadAt(p []byte, off int64) (n int, err error) {
	if off >= f.info.Size {
		return 0, io.EOF
	}
	asked := len(p)
	p = p[:min(int64(asked), f.info.Size-off)]
	for n < len(p) {
		got, err := f.some(p[n:], off+int64(n))
		n += got
		if err != nil {
			return n, err
		}
	}
	if n < asked {
		return n, io.EOF
	}
	return n, nil
}

// some reads the bytes that the request of the first byte has, or all bytes.
func (f *File) some(p []byte, off int64) (int, error) {
	r := f.take(off)
	if r == nil {
		return f.direct(p, off)
	}
	<-r.done
	if r.err != nil {
		f.passed(r)
		if f.ctx.Err() == nil && errors.Is(r.err, context.Canceled) {
			return f.direct(p, off) // another reader passed the request
		}
		return 0, r.err
	}
	n := copy(p, r.data[off-r.off:])
	if off+int64(n) == r.off+r.n {
		f.passed(r)
	}
	return n, nil
}

func (f *File) direct(p []byte, off int64) (int, error) {
	if err := f.read(f.ctx, p, off); err != nil {
		return 0, err
	}
	return len(p), nil
}

// read fills p from the cache or the store.
func (f *File) read(ctx context.Context, p []byte, off int64) error {
	f.mu.Lock()
	cache := f.cache
	f.mu.Unlock()
	if cache == nil {
		return f.bucket.ReadRange(ctx, f.key, f.info, p, off)
	}
	entry := f.entry(cache, off, len(p))
	if !entry.read(p) {
		if err := f.bucket.ReadRange(ctx, f.key, f.info, p, off); err != nil {
			return err
		}
		entry.write(p)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.cached) == 2*mostCached {
		f.cached = f.cached[:copy(f.cached, f.cached[mostCached:])]
	}
	f.cached = append(f.cached, span{off, len(p)})
	return nil
}

func (f *File) entry(cache *Cache, off int64, n int) entry {
	//guard:cache-entry-names-version
	return cache.entry(f.bucket.URL(f.key), f.bucket.endpoint, f.info.Stamp, off, n)
}

// Reread makes the next reads request the bytes of the store again, because the bytes that were read are damaged. It removes them from the
// cache, which the File uses no longer. Without a cache it does nothing, and returns false.
func (f *File) Reread() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cache == nil {
		return false
	}
	//guard:damaged-entry-removed
	for _, s := range f.cached {
		_ = os.Remove(f.entry(f.cache, s.off, s.n).path) // a concurrent reader can have removed it
	}
	f.cache, f.cached = nil, nil
	//guard:damaged-window-dropped
	f.dropLocked(len(f.requests))
	return true
}
