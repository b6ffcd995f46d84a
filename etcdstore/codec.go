package etcdstore

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
)

// ErrCorrupt says that stored bytes are not what Encode made. They are left as
// they are.
var ErrCorrupt = errors.New("corrupt or partial")

const whatToDoCorrupt = "the bytes were left untouched: restore etcd from a snapshot, or start a new job under another --job"

// compressor is a gzip writer onto a buffer of its own. A gzip writer weighs
// hundreds of kilobytes; commits come by the thousand.
type compressor struct {
	out bytes.Buffer
	zip *gzip.Writer
}

var compressors = sync.Pool{New: func() any {
	c := &compressor{}
	c.zip, _ = gzip.NewWriterLevel(&c.out, gzip.BestSpeed) // the level is valid
	return c
}}

// Encode is gob, then gzip at its fastest level: the form of /task_queues and
// of the parts of the task table.
func Encode(v any) ([]byte, error) {
	c := compressors.Get().(*compressor)
	defer compressors.Put(c)
	c.out.Reset()
	c.zip.Reset(&c.out)
	if err := gob.NewEncoder(c.zip).Encode(v); err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	if err := c.zip.Close(); err != nil {
		return nil, fmt.Errorf("compress %T: %w", v, err)
	}
	return bytes.Clone(c.out.Bytes()), nil
}

type decompressor struct {
	in  bytes.Reader
	zip gzip.Reader
	out bytes.Buffer
}

var decompressors = sync.Pool{New: func() any { return &decompressor{} }}

// Decode reads what Encode made into v, a pointer. More than limit bytes after
// decompression are refused before they take memory. Nothing reaches v before
// the checksum of the whole was found right. Wrong bytes are [ErrCorrupt].
func Decode(b []byte, v any, limit int64) error {
	d := decompressors.Get().(*decompressor)
	defer decompressors.Put(d)
	if err := d.inflate(b, limit); err != nil {
		return fmt.Errorf("decode %T from %d bytes: %w; %s", v, len(b), err, whatToDoCorrupt)
	}
	in := bytes.NewReader(d.out.Bytes()) // an io.ByteReader: gob reads no further than the value
	if err := gob.NewDecoder(in).Decode(v); err != nil {
		return fmt.Errorf("decode %T from %d bytes: %w: %w; %s", v, len(b), ErrCorrupt, err, whatToDoCorrupt)
	}
	if in.Len() > 0 {
		return fmt.Errorf("decode %T: %w: %d bytes after its end; %s", v, ErrCorrupt, in.Len(), whatToDoCorrupt)
	}
	return nil
}

// inflate fills out with at most limit bytes, checksum verified.
func (d *decompressor) inflate(b []byte, limit int64) error {
	d.in.Reset(b)
	d.out.Reset()
	if err := d.zip.Reset(&d.in); err != nil {
		return fmt.Errorf("%w: gzip header: %w", ErrCorrupt, err)
	}
	d.zip.Multistream(false)
	n, err := io.Copy(&d.out, io.LimitReader(&d.zip, limit+1))
	switch {
	case err != nil:
		return fmt.Errorf("%w: gzip: %w", ErrCorrupt, err)
	case n > limit:
		return fmt.Errorf("%w: more than %d bytes when decompressed", ErrCorrupt, limit)
	case d.in.Len() > 0:
		return fmt.Errorf("%w: %d bytes after the end of the gzip stream", ErrCorrupt, d.in.Len())
	}
	return nil
}
