package tfrecord

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"sync/atomic"

	"trainmaster/recordio"
)

// File reads a TFRecord file. Several goroutines may call its methods concurrently. Each call takes its own buffer from a pool.
type File struct {
	// MaxRecordBytes refuses records that are larger; zero means DefaultMaxRecordBytes. Set it before the first read.
	MaxRecordBytes int64

	reader      io.ReaderAt
	size        int64
	name        string
	closer      io.Closer
	compression atomic.Int32 // a Compression + 1 after it is known
}

// Open opens the file at path, which must be a regular file; it never waits for the writer of a FIFO.
func Open(path string) (*File, error) {
	file, size, err := recordio.OpenRegular(path)
	if err != nil {
		return nil, err
	}
	f := NewFile(file, size, path)
	f.closer = file
	return f, nil
}

// NewFile reads the first size bytes of r. Errors use name for the file, if it is not empty. Closing the File does not close r.
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

// Name is the name of the file in errors.
func (f *File) Name() string { return f.name }

func (f *File) limit() int64 {
	if f.MaxRecordBytes > 0 {
		return f.MaxRecordBytes
	}
	return DefaultMaxRecordBytes
}

// Compression reads the first bytes of the file, if that was not done yet, and returns the compression of the file.
func (f *File) Compression() (Compression, error) {
	if known := f.compression.Load(); known > 0 {
		return Compression(known - 1), nil
	}
	start := make([]byte, headerSize)
	n, err := io.ReadFull(io.NewSectionReader(f.reader, 0, f.size), start)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return None, &Error{File: f.name, Record: -1, Offset: -1, Err: err}
	}
	c := compressionOf(start[:n])
	f.compression.Store(int32(c) + 1)
	return c, nil
}

// Recognize reports whether the file begins with a record: whether the checksum of the first length is valid, after
// decompression if the file is compressed. A file without records is not recognized. It returns an error if the file cannot be read.
func (f *File) Recognize() (bool, error) {
	s, err := f.scan()
	if err == nil {
		defer s.release()
		s.ahead = 0
		_, err = s.header()
		err = s.at(f, err)
	}
	switch {
	case err == nil, errors.Is(err, recordio.ErrTooLarge):
		return true, nil
	case errors.Is(err, recordio.ErrTruncated):
		return s != nil && s.offset-s.start == headerSize, nil // the data is cut short, the header is valid
	case err == io.EOF, errors.Is(err, recordio.ErrBadChecksum), errors.Is(err, recordio.ErrMalformed): //nolint:errorlint // only the bare io.EOF is the end of the data
		return false, nil
	}
	return false, err
}

// scan begins at the first record of the file.
func (f *File) scan() (*scanner, error) {
	c, err := f.Compression()
	if err != nil {
		return nil, err
	}
	if c == None {
		return f.scanPart(0, f.size), nil
	}
	in, err := newDecompressor(io.NewSectionReader(f.reader, 0, f.size), c)
	if err != nil {
		return nil, &Error{File: f.name, Record: 0, Offset: 0, Decompressed: true, Err: err}
	}
	return newScanner(in, nil, 0, -1, f.limit()), nil
}

// scanPart begins at an offset of a file that is not compressed.
func (f *File) scanPart(offset, end int64) *scanner {
	section := io.NewSectionReader(f.reader, offset, end-offset)
	return newScanner(section, section, offset, end, f.limit())
}

// at says that err, if it is not io.EOF, is about the current record.
func (s *scanner) at(f *File, err error) error {
	if err == nil || err == io.EOF { //nolint:errorlint // only the bare io.EOF is the end of the data
		return err
	}
	return &Error{File: f.name, Record: s.number, Offset: s.start, Decompressed: s.end < 0, Err: err}
}

// Records yields all records of the file in order. A record is valid until the body of the loop returns; its memory is used
// again. After an error, which comes as the last pair, the file is not read further.
func (f *File) Records() iter.Seq2[[]byte, error] { return f.RecordsFrom(0, 0, 0) }

// RecordsFrom yields the records from the record at offset on, without the first skip of them, like Records. Errors count records
// from number, which is the number of the record at offset. It does not verify the data of skipped records. In a compressed file the
// offset must be 0.
func (f *File) RecordsFrom(offset, number, skip int64) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		s, err := f.scanFrom(offset, number)
		if err != nil {
			yield(nil, err)
			return
		}
		defer s.release()
		for n := int64(0); ; n++ {
			var record []byte
			if n < skip {
				err = s.skip()
			} else {
				s.ahead = bufferBytes
				record, err = s.next()
			}
			if err == io.EOF { //nolint:errorlint // only the bare io.EOF is the end of the data
				return
			}
			if n < skip && err == nil {
				continue
			}
			if !yield(record, s.at(f, err)) || err != nil {
				return
			}
		}
	}
}

// scanFrom begins at a record in the middle of a file that is not compressed, or at the beginning.
func (f *File) scanFrom(offset, number int64) (*scanner, error) {
	c, err := f.Compression()
	switch {
	case err != nil:
		return nil, err
	case offset == 0:
		return f.scan()
	case c != None:
		return nil, &Error{File: f.name, Record: number, Offset: offset, Err: fmt.Errorf("%w: expected offset 0 in a file with compression %s", recordio.ErrChanged, c)}
	}
	s := f.scanPart(offset, f.size)
	s.number = number
	return s, nil
}

// Chunk yields the records of the chunk that c describes, like Records. If the file has other records there, the last pair is an
// error that wraps recordio.ErrChanged. Records before that pair are whole, but they can differ from the index.
func (f *File) Chunk(c Chunk) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		s, err := f.scanChunk(c)
		if err != nil {
			yield(nil, err)
			return
		}
		defer s.release()
		s.number = c.First
		checksum := uint32(0)
		for {
			record, err := s.next()
			if err == io.EOF { //nolint:errorlint // only the bare io.EOF is the end of the data
				break
			}
			if !yield(record, s.at(f, s.changed(err))) || err != nil {
				return
			}
			checksum = s.addTo(checksum)
		}
		//guard:chunk-records-compared
		if read := s.number - c.First; read != c.Records || checksum != c.Checksum {
			s.number, s.start = c.First, c.Offset
			yield(nil, s.at(f, fmt.Errorf("%w: expected a chunk of %d records with checksum %#08x, found %d records with %#08x: %s",
				recordio.ErrChanged, c.Records, c.Checksum, read, checksum, indexAgain)))
		}
	}
}

// changed adds recordio.ErrChanged to an error that an index would have found: a bad length, or a record without its end.
func (s *scanner) changed(err error) error {
	if errors.Is(err, recordio.ErrTruncated) || errors.Is(err, recordio.ErrBadChecksum) && s.offset-s.start <= headerSize {
		return fmt.Errorf("%w: %w", recordio.ErrChanged, err)
	}
	return err
}

// scanChunk begins at the first record of a chunk, after a look at what the file still has of the index.
func (f *File) scanChunk(c Chunk) (*scanner, error) {
	now, err := f.Compression()
	if err != nil {
		return nil, err
	}
	changed := func(format string, args ...any) error {
		return &Error{File: f.name, Record: c.First, Offset: c.Offset, Err: fmt.Errorf("%w: "+format+": "+indexAgain, append([]any{recordio.ErrChanged}, args...)...)}
	}
	switch {
	case now != c.Compression:
		return nil, changed("expected compression %s, found %s", c.Compression, now)
	case c.Offset < 0 || c.Size < 0 || c.Size > f.size-c.Offset:
		return nil, changed("expected a chunk of %d bytes, found %d bytes up to the end of the file", c.Size, max(f.size-c.Offset, 0))
	case now == None:
		return f.scanPart(c.Offset, c.Offset+c.Size), nil
	case c.Size != f.size || c.Offset != 0:
		return nil, changed("expected %d bytes, found %d", c.Size, f.size)
	}
	return f.scan()
}
