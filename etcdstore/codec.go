package etcdstore

import (
	"bytes"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"reflect"
	"sync"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"trainmaster/taskqueue"
)

// ErrCorrupt says that stored bytes are not what Encode made. They are left as
// they are.
var ErrCorrupt = errors.New("corrupt or partial")

// errDamaged is [ErrCorrupt] of what every term reads: a master ends with it.
var errDamaged = fmt.Errorf("%w: %w", taskqueue.ErrDamaged, ErrCorrupt)

const whatToDoCorrupt = "the bytes were left untouched: restore etcd from a snapshot, or start a new job under another --job"

// compressor encodes values of one type. A gob stream describes its types before the first value. To describe and compress
// them again for every commit costs more than the value. So the encoder is never reset, and each value begins with the
// description of the first value, compressed once and flushed to a byte boundary:
//
//	┌─────────────┬──────────────────────┬────────────────┬──────────────┐
//	│ gzip header │ deflate: types, sync │ deflate: value │ CRC-32, size │  RFC 1951, 1952
//	└─────────────┴──────────────────────┴────────────────┴──────────────┘
type compressor struct {
	start []byte // header and types
	crc   uint32 // of the types
	size  int    // of the types
	plain bytes.Buffer
	gob   *gob.Encoder // onto plain; has described its types
	out   bytes.Buffer
	zip   *flate.Writer // onto out; it weighs hundreds of kilobytes
}

// spares are unused compressors of one type. To make a compressor costs many times as much as to encode a value, so some are
// kept: a sync.Pool drops its values at garbage collection, and under the race detector every fourth value.
type spares struct {
	mu   sync.Mutex
	list []*compressor
}

// sparesKept of each type: one master has one committer.
const sparesKept = 2

// compressors are the spares of each type.
var compressors sync.Map // of *spares by reflect.Type

// take returns one, nil if there is none.
func (s *spares) take() (c *compressor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := len(s.list) - 1; last >= 0 {
		c, s.list = s.list[last], s.list[:last]
	}
	return c
}

func (s *spares) give(c *compressor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.list) < sparesKept {
		s.list = append(s.list, c)
	}
}

// compressorFor returns a compressor that can encode v, and what takes it back.
func compressorFor(v any) (*compressor, *spares, error) {
	t := reflect.TypeOf(v)
	known, ok := compressors.Load(t)
	if !ok {
		if holdsInterface(t, map[reflect.Type]bool{}) {
			return nil, nil, errors.New("it holds an interface, whose types gob describes only as they come")
		}
		known, _ = compressors.LoadOrStore(t, &spares{})
	}
	spare := known.(*spares)
	if c := spare.take(); c != nil {
		return c, spare, nil
	}
	c := &compressor{}
	c.gob = gob.NewEncoder(&c.plain)
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
	return c, spare, c.compressTypes(c.plain.Bytes()[:described-bare])
}

// compressTypes makes the start of every value.
func (c *compressor) compressTypes(types []byte) error {
	zip := gzip.NewWriter(&c.out)
	_, err := zip.Write(types)
	if err == nil {
		err = zip.Flush()
	}
	if err != nil {
		return err
	}
	c.start, c.crc, c.size = bytes.Clone(c.out.Bytes()), crc32.ChecksumIEEE(types), len(types)
	c.zip, err = flate.NewWriter(&c.out, flate.BestSpeed)
	return err
}

// compress appends to out what makes the start and value a gzip stream.
func (c *compressor) compress(value []byte) error {
	c.out.Reset()
	c.out.Write(c.start)
	c.zip.Reset(&c.out)
	if _, err := c.zip.Write(value); err != nil {
		return err
	}
	if err := c.zip.Close(); err != nil {
		return err
	}
	var end [8]byte
	binary.LittleEndian.PutUint32(end[:], crc32.Update(c.crc, crc32.IEEETable, value))
	binary.LittleEndian.PutUint32(end[4:], uint32(c.size+len(value))) //nolint:gosec // modulo 2^32, says RFC 1952
	c.out.Write(end[:])
	return nil
}

// holdsInterface walks a type. seen are the types that it has entered.
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
	c, spare, err := compressorFor(v)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	c.plain.Reset()
	if err := c.gob.Encode(v); err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	if err := c.compress(c.plain.Bytes()); err != nil {
		return nil, fmt.Errorf("compress %T: %w", v, err)
	}
	encoded := bytes.Clone(c.out.Bytes())
	spare.give(c)
	return encoded, nil
}

// Encode implements [store.Store].
func (*Store) Encode(v any) ([]byte, error) { return Encode(v) }

// Decode implements [store.Store].
func (*Store) Decode(b []byte, v any, limit int64) error { return Decode(b, v, limit) }

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
	//guard:no-trailing-bytes
	case d.in.Len() > 0:
		return fmt.Errorf("%w: %d bytes after the end of the gzip stream", ErrCorrupt, d.in.Len())
	}
	return nil
}
