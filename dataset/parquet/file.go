package parquet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"trainmaster/recordio"
)

// ErrRows is the error of reading the records of a Parquet file, which has rows.
var ErrRows = errors.New("a Parquet file has rows and no records")

// File reads a Parquet file of a random-access reader. It is safe for concurrent use.
type File struct {
	reader io.ReaderAt
	size   int64
	name   string

	mu     sync.Mutex
	footer *Footer // guarded by mu
	tail   []byte  // guarded by mu; the footer and the trailer
}

// NewFile returns the file of size bytes. The name is for errors.
func NewFile(r io.ReaderAt, size int64, name string) *File {
	return &File{reader: r, size: size, name: name}
}

// Name and Size are the name and the number of bytes of the file.
func (f *File) Name() string { return f.name }

// Size is the number of bytes of the file.
func (f *File) Size() int64 { return f.size }

// Recognize reports whether the file begins as a Parquet file.
func (f *File) Recognize() (bool, error) {
	start := make([]byte, magicSize)
	if n, err := f.reader.ReadAt(start, 0); n < magicSize {
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		return false, f.at(0, err)
	}
	return string(start) == magic || string(start) == encrypted, nil
}

func (f *File) at(offset int64, err error) error {
	if err == nil {
		return nil
	}
	return &recordio.Error{File: f.name, Offset: offset, Err: err}
}

// Footer reads the index of the file, once.
func (f *File) Footer() (*Footer, error) {
	footer, _, err := f.readFooter()
	return footer, err
}

// firstTail is the number of bytes at the end of a file that are read first: most footers are in them.
const firstTail = 64 << 10

func (f *File) readFooter() (*Footer, []byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.footer != nil {
		return f.footer, f.tail, nil
	}
	const least = magicSize + trailerSize
	if f.size < least {
		return nil, nil, f.at(-1, fmt.Errorf("%w: expected a Parquet file of at least %d bytes, found %d", recordio.ErrTruncated, least, f.size))
	}
	tail := make([]byte, min(f.size-magicSize, firstTail))
	if err := f.read(tail, f.size-int64(len(tail))); err != nil {
		return nil, nil, err
	}
	trailer := tail[len(tail)-trailerSize:]
	at := f.size - trailerSize
	length := int64(binary.LittleEndian.Uint32(trailer)) + trailerSize
	switch found := string(trailer[4:]); {
	case found == encrypted:
		return nil, nil, f.at(at, fmt.Errorf("%w: expected a footer that is not encrypted", recordio.ErrMalformed))
	case found != magic:
		return nil, nil, f.at(at, fmt.Errorf("%w: expected %q at the end of a Parquet file, found %q: copy the file again, or write it again if its writer was stopped", recordio.ErrTruncated, magic, found))
	//guard:parquet-footer-limit
	case length > MaxFooterBytes:
		return nil, nil, f.at(at, fmt.Errorf("%w: expected a footer of at most %d bytes, found %d: write fewer row groups or columns", recordio.ErrTooLarge, MaxFooterBytes, length))
	case length > f.size-magicSize:
		return nil, nil, f.at(at, fmt.Errorf("%w: expected a footer inside the file of %d bytes, found a length of %d", recordio.ErrMalformed, f.size, length))
	}
	if length > int64(len(tail)) {
		tail = make([]byte, length)
		if err := f.read(tail, f.size-length); err != nil {
			return nil, nil, err
		}
	}
	tail = tail[int64(len(tail))-length:]
	footer, err := parseFooter(tail, f.size)
	if err != nil {
		return nil, nil, f.at(f.size-length, err)
	}
	f.footer, f.tail = footer, tail
	return footer, tail, nil
}

// read fills p.
func (f *File) read(p []byte, offset int64) error {
	n, err := f.reader.ReadAt(p, offset)
	if n == len(p) {
		return nil
	}
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w: expected %d bytes, found %d", recordio.ErrTruncated, len(p), n)
	}
	return f.at(offset, err)
}

// Part is the bytes of a row group in memory, as a Parquet file: reads inside the row group, the footer and the magic number need no
// access to the file. Other reads, of indexes and of other row groups, go to the file. It is safe for concurrent use.
type Part struct {
	Number int // of the row group, from 0
	Rows   int64
	file   *File
	offset int64
	data   []byte
	tail   []byte
}

// Check compares the footer with an index: the checksum of the footer, and size and rows of the row group with the number.
func (f *File) Check(number int64, size, rows, checksum uint32) error {
	footer, err := f.Footer()
	if err != nil {
		return err
	}
	//guard:parquet-footer-compared
	if footer.Checksum != checksum {
		return f.at(-1, fmt.Errorf("%w: expected a footer with the checksum %#08x, found %#08x", recordio.ErrChanged, checksum, footer.Checksum))
	}
	if number < 0 || number >= int64(len(footer.Groups)) {
		return f.at(-1, fmt.Errorf("%w: expected row group %d, found %d row groups", recordio.ErrChanged, number, len(footer.Groups)))
	}
	if g := footer.Groups[number]; g.Size != int64(size) || g.Rows != int64(rows) {
		return f.at(g.Offset, fmt.Errorf("%w: expected row group %d with %d rows in %d bytes, found %d rows in %d bytes", recordio.ErrChanged, number, rows, size, g.Rows, g.Size))
	}
	return nil
}

// Part reads a row group, in one read of the file.
func (f *File) Part(number int) (*Part, error) {
	footer, tail, err := f.readFooter()
	if err != nil {
		return nil, err
	}
	if number < 0 || number >= len(footer.Groups) {
		return nil, f.at(-1, fmt.Errorf("row group %d: expected a number below %d", number, len(footer.Groups)))
	}
	g := footer.Groups[number]
	p := &Part{Number: number, Rows: g.Rows, file: f, offset: g.Offset, data: make([]byte, g.Size), tail: tail}
	return p, f.read(p.data, p.offset)
}

// Size is the number of bytes of the whole file.
func (p *Part) Size() int64 { return p.file.size }

// ReadAt implements [io.ReaderAt] for the whole file.
func (p *Part) ReadAt(b []byte, offset int64) (int, error) {
	for _, in := range []struct {
		offset int64
		data   []byte
	}{{0, []byte(magic)}, {p.offset, p.data}, {p.file.size - int64(len(p.tail)), p.tail}} {
		//guard:parquet-part-in-memory
		if offset >= in.offset && offset+int64(len(b)) <= in.offset+int64(len(in.data)) {
			return copy(b, in.data[offset-in.offset:]), nil
		}
	}
	return p.file.reader.ReadAt(b, offset)
}
