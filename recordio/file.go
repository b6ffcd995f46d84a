package recordio

import (
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"sync/atomic"
	"syscall"
)

// DefaultMaxChunkBytes bounds the memory that one chunk may take, stored as well as decompressed.
const DefaultMaxChunkBytes = 256 << 20

// File reads a RecordIO file. Its methods may be called by several goroutines concurrently. Each call takes its own buffers
// from a pool.
type File struct {
	// MaxChunkBytes refuses chunks that are larger, stored or decompressed; zero means DefaultMaxChunkBytes. Set it
	// before the first read.
	MaxChunkBytes int64

	reader io.ReaderAt
	size   int64
	name   string
	closer io.Closer
	layout atomic.Uint32 // a Layout once it is known
}

// Open opens the file at path, which must be a regular one; it never waits for the writer of a FIFO.
func Open(path string) (*File, error) {
	file, size, err := OpenRegular(path)
	if err != nil {
		return nil, err
	}
	f := NewFile(file, size, path)
	f.closer = file
	return f, nil
}

// OpenRegular opens the regular file at path and returns its size. It never waits for the writer of a FIFO.
func OpenRegular(path string) (file *os.File, size int64, err error) {
	if file, err = os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0); err != nil {
		return nil, 0, OpenError(path, err)
	}
	info, err := file.Stat()
	if err == nil {
		err = CheckRegular(path, info.Mode())
	}
	if err != nil {
		file.Close()
		return nil, 0, err
	}
	return file, info.Size(), nil
}

// CheckRegular returns an error that wraps ErrNotRegular and names the type of the file at path if it is not a regular file.
func CheckRegular(path string, mode fs.FileMode) error {
	var kind string
	switch {
	case mode.IsRegular():
		return nil
	case mode.IsDir():
		kind = "a directory: name the files in it"
	case mode&fs.ModeNamedPipe != 0:
		kind = "a FIFO"
	case mode&fs.ModeSocket != 0:
		kind = "a socket"
	default:
		kind = "a device"
	}
	return &Error{File: path, Offset: -1, Err: fmt.Errorf("%w but %s", ErrNotRegular, kind)}
}

// NewFile reads the first size bytes of r. Errors use name for the file. Closing the File does not close r.
func NewFile(r io.ReaderAt, size int64, name string) *File {
	return &File{reader: r, size: size, name: name}
}

// Close closes what Open opened.
func (f *File) Close() error {
	if f.closer == nil {
		return nil
	}
	return f.closer.Close()
}

// Size is the number of bytes of the file when it was opened.
func (f *File) Size() int64 { return f.size }

func (f *File) limit() int64 {
	if f.MaxChunkBytes > 0 {
		return f.MaxChunkBytes
	}
	return DefaultMaxChunkBytes
}

// errorAt says that err is about the chunk whose header is at offset.
func (f *File) errorAt(offset int64, err error) error {
	return &Error{File: f.name, Offset: offset, Err: err}
}

// Layout reads the first chunk, if that was not done yet, and returns the layout of the file.
func (f *File) Layout() (Layout, error) {
	b := bufferPool.Get().(*buffers)
	defer b.release()
	l, err := b.detect(f)
	if err != nil {
		return 0, f.errorAt(0, err)
	}
	return l, nil
}

// Small chunks are indexed from blocks of readAhead bytes, larger ones by reading only their headers.
const (
	smallChunk = 16 << 10
	readAhead  = 64 << 10
)

// Index lists the chunks of the file, from their headers; only the payload of the first chunk is read. After an error
// there is no index.
func (f *File) Index() ([]Index, error) {
	b := bufferPool.Get().(*buffers)
	defer b.release()
	l, err := b.detect(f)
	if err != nil {
		return nil, f.errorAt(0, err)
	}
	var index []Index
	ahead := int64(HeaderSize)
	for offset := int64(0); offset < f.size; {
		h, err := b.header(f, offset, l, ahead)
		if err != nil {
			return nil, f.errorAt(offset, err)
		}
		ix := h.index(offset, l)
		index = append(index, ix)
		offset, ahead = ix.End(), HeaderSize
		if h.size < smallChunk {
			ahead = readAhead
		}
	}
	return index, nil
}

// Records yields all records of the file in order. A record is valid until the loop's body returns; its memory is used
// again. After an error, which comes as the last pair, the file is not read further.
func (f *File) Records() iter.Seq2[[]byte, error] { return f.RecordsFrom(0, 0) }

// RecordsFrom yields the records from the chunk at offset on, without the first skip of them, like Records. Of a chunk that is
// skipped as a whole it reads the header only.
func (f *File) RecordsFrom(offset, skip int64) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		b := bufferPool.Get().(*buffers)
		defer b.release()
		l, err := b.detect(f)
		if err != nil {
			yield(nil, f.errorAt(0, err))
			return
		}
		skip, ahead := skip, int64(HeaderSize)
		for offset := offset; offset < f.size; {
			h, err := b.header(f, offset, l, ahead)
			more := true
			switch {
			case err != nil:
			case skip == 0:
				more, err = b.records(f, offset, h, l, yield)
			case int64(h.records) > skip:
				more, err = b.records(f, offset, h, l, func(record []byte, err error) bool {
					//guard:records-skipped
					if skip > 0 {
						skip--
						return true
					}
					return yield(record, err)
				})
			default:
				skip -= int64(h.records)
			}
			if err != nil {
				yield(nil, f.errorAt(offset, err))
				return
			}
			if !more {
				return
			}
			offset, ahead = h.index(offset, l).End(), HeaderSize
			if skip > 0 && h.size < smallChunk {
				ahead = readAhead
			}
		}
	}
}

// Chunk yields the records of the one chunk that ix describes, like Records. A header that differs from ix in anything
// is an error that wraps ErrChanged. As ix has the checksum of the payload, another payload of the same size is noticed, too.
func (f *File) Chunk(ix Index) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		b := bufferPool.Get().(*buffers)
		defer b.release()
		h, err := b.expect(f, ix)
		more := true
		if err == nil {
			more, err = b.records(f, ix.Offset, h, ix.Layout, yield)
		}
		if err != nil && more {
			yield(nil, f.errorAt(ix.Offset, err))
		}
	}
}
