package etcdstore

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"reflect"
	"sync"

	"github.com/klauspost/compress/gzip"
)

// ErrCorrupt says that stored bytes are not what Encode made. They are left as
// they are.
var ErrCorrupt = errors.New("corrupt or partial")

const whatToDoCorrupt = "the bytes were left untouched: restore etcd from a snapshot, or start a new job under another --job"

// compressor encodes values of one type. A gob stream describes its types before the first
// value; to describe them again for every commit costs more than the value. So the encoder
// goes on for ever, and each value gets the description in front that the first one had.
type compressor struct {
	types []byte // their description
	plain bytes.Buffer
	gob   *gob.Encoder // onto plain; has described its types
	out   bytes.Buffer
	zip   *gzip.Writer // onto out; it weighs hundreds of kilobytes
}

// compressors are pools, one for each type.
var compressors sync.Map // of *sync.Pool by reflect.Type

// compressorFor returns a compressor that can encode v, and the pool that takes it back.
func compressorFor(v any) (*compressor, *sync.Pool, error) {
	t := reflect.TypeOf(v)
	known, ok := compressors.Load(t)
	if !ok {
		if holdsInterface(t, map[reflect.Type]bool{}) {
			return nil, nil, errors.New("it holds an interface, whose types gob describes only as they come")
		}
		known, _ = compressors.LoadOrStore(t, &sync.Pool{})
	}
	pool := known.(*sync.Pool)
	if c, ok := pool.Get().(*compressor); ok {
		return c, pool, nil
	}
	c := &compressor{}
	c.gob = gob.NewEncoder(&c.plain)
	c.zip, _ = gzip.NewWriterLevel(&c.out, gzip.BestSpeed) // the level is valid
	zero := reflect.New(t)
	if t.Kind() == reflect.Pointer {
		zero = reflect.New(t.Elem())
	}
	if err := c.gob.EncodeValue(zero); err != nil {
		return nil, nil, err
	}
	described := c.plain.Len()
	if err := c.gob.EncodeValue(zero); err != nil {
		return nil, nil, err
	}
	bare := c.plain.Len() - described
	c.types = bytes.Clone(c.plain.Bytes()[:described-bare])
	return c, pool, nil
}

// holdsInterface walks a type; seen are those that it is in or was through with.
func holdsInterface(t reflect.Type, seen map[reflect.Type]bool) bool {
	if t == nil || seen[t] {
		return t == nil
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Interface:
		return true
	case reflect.Map:
		return holdsInterface(t.Key(), seen) || holdsInterface(t.Elem(), seen)
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return holdsInterface(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if holdsInterface(t.Field(i).Type, seen) {
				return true
			}
		}
	}
	return false
}

// Encode is gob, then gzip at its fastest level: the form of /task_queues and
// of the parts of the task table. The type of v must not hold interfaces.
func Encode(v any) ([]byte, error) {
	c, pool, err := compressorFor(v)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	c.plain.Reset()
	if err := c.gob.Encode(v); err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	defer pool.Put(c)
	c.out.Reset()
	c.zip.Reset(&c.out)
	_, err = c.zip.Write(c.types)
	if err == nil {
		_, err = c.zip.Write(c.plain.Bytes())
	}
	if err == nil {
		err = c.zip.Close()
	}
	if err != nil {
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
