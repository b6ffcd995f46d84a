package tfrecord

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"

	"trainmaster/recordio"
)

// compressionOf returns the compression of a file by its first bytes. A file whose first header is valid is not compressed. Of
// other files, a gzip or zlib stream begins with its own header, which contains its method of compression.
func compressionOf(start []byte) Compression {
	if len(start) >= headerSize {
		if computed, stored := lengthChecksums(start); computed == stored {
			return None
		}
	}
	const deflate = 8
	switch {
	case len(start) >= 3 && start[0] == 0x1f && start[1] == 0x8b && start[2] == deflate:
		return Gzip
	case len(start) < 2 || start[0]&0xf != deflate || start[0]>>4 > 7 || (int(start[0])<<8|int(start[1]))%31 != 0:
		return None
	case len(start) >= lengthSize && [4]byte(start[4:]) == [4]byte{}:
		return None // a length below 4 GiB with a bad checksum: a zlib stream has no four zero bytes here
	}
	return Zlib
}

// decompressor reads compressed data up to its end, which must be the end of the file. Its errors never wrap io.EOF or
// io.ErrUnexpectedEOF, except io.EOF at the end.
type decompressor struct {
	file *bufio.Reader
	data io.Reader
}

func newDecompressor(file io.Reader, c Compression) (*decompressor, error) {
	d := &decompressor{file: bufio.NewReaderSize(file, 64<<10)}
	var err error
	if c == Gzip {
		d.data, err = gzip.NewReader(d.file)
	} else {
		d.data, err = zlib.NewReader(d.file)
	}
	if err != nil {
		return nil, explainCompressed(err)
	}
	return d, nil
}

func (d *decompressor) Read(p []byte) (int, error) {
	n, err := d.data.Read(p)
	switch {
	case err == nil:
		return n, nil
	case !errors.Is(err, io.EOF):
		return n, explainCompressed(err)
	}
	switch _, more := d.file.Peek(1); {
	case more == nil:
		return n, fmt.Errorf("%w: expected the end of the file after the compressed data, found more bytes: %s", recordio.ErrMalformed, restoreFile)
	case !errors.Is(more, io.EOF):
		return n, more
	}
	return n, io.EOF
}

// explainCompressed returns an error of a decompressor with the sentinel error that it means, or the error of reading the file.
func explainCompressed(err error) error {
	_, corrupt := errors.AsType[flate.CorruptInputError](err)
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return fmt.Errorf("%w: expected the end of the compressed data, found the end of the file: %s", recordio.ErrTruncated, copyAgain)
	case errors.Is(err, gzip.ErrChecksum), errors.Is(err, zlib.ErrChecksum):
		return fmt.Errorf("%w of the decompressed file: %s", recordio.ErrBadChecksum, restoreFile)
	case corrupt, errors.Is(err, gzip.ErrHeader), errors.Is(err, zlib.ErrHeader), errors.Is(err, zlib.ErrDictionary):
		return fmt.Errorf("%w: expected compressed data, found: %w: %s", recordio.ErrMalformed, err, restoreFile)
	}
	return err
}
