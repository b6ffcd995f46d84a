// Package safetensors writes and reads the safetensors file format, which
// PyTorch, JAX, NumPy and Hugging Face load without running any code.
//
//	0             8                 8+n
//	+-------------+-----------------+------------------------------+
//	| n u64       | header: JSON    | data of all tensors, no gaps |
//	+-------------+-----------------+------------------------------+
//
// The header maps each name to {"dtype", "shape", "data_offsets": [begin, end]},
// with offsets into the data, and "__metadata__" to a map of strings. It is
// padded with spaces so that the data starts at a multiple of 8. Everything is
// little-endian, arrays are row-major.
//
// Written files hold the tensors in the order given. Read files may hold them
// in any order, but without gaps or overlaps, as the format demands. The header
// is bounded by [MaxHeader] before memory is allocated, and checked completely
// before any data is read: an error names the tensor and the rule. The
// format has no checksum; callers store a checksum separately.
package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"trainmaster/internal/filekind"
)

// MaxHeader is the longest header that is written or read: the limit of the
// reference implementation.
const MaxHeader = 100_000_000

const metadataKey = "__metadata__"

// DType is the element type of a tensor, by the name that the format gives it.
type DType string

// The element types that the format knows.
const (
	Bool DType = "BOOL"
	U8   DType = "U8"
	I8   DType = "I8"
	U16  DType = "U16"
	I16  DType = "I16"
	F16  DType = "F16"
	BF16 DType = "BF16"
	U32  DType = "U32"
	I32  DType = "I32"
	F32  DType = "F32"
	U64  DType = "U64"
	I64  DType = "I64"
	F64  DType = "F64"
)

// Size is the number of bytes of one element, 0 for an unknown type.
func (d DType) Size() int {
	switch d {
	case Bool, U8, I8:
		return 1
	case U16, I16, F16, BF16:
		return 2
	case U32, I32, F32:
		return 4
	case U64, I64, F64:
		return 8
	}
	return 0
}

// Info describes a tensor. An empty shape is a scalar.
type Info struct {
	Name  string
	DType DType
	Shape []int
}

// Bytes is the size of the tensor's data.
func (i Info) Bytes() (int64, error) {
	n := int64(i.DType.Size())
	if n == 0 {
		return 0, fmt.Errorf("tensor %q has unknown dtype %q", i.Name, i.DType)
	}
	for _, d := range i.Shape {
		if d < 0 {
			return 0, fmt.Errorf("tensor %q has shape %v: negative dimension", i.Name, i.Shape)
		}
		if d > 0 && n > math.MaxInt64/int64(d) {
			return 0, fmt.Errorf("tensor %q has shape %v: its size overflows", i.Name, i.Shape)
		}
		n *= int64(d)
	}
	return n, nil
}

// Tensor is a tensor with its data, little-endian and row-major.
type Tensor struct {
	Info
	Data []byte
}

// entry is how the header describes a tensor.
type entry struct {
	DType   DType    `json:"dtype"`
	Shape   []int    `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// Writer writes one file piece by piece: NewWriter writes the header, Write
// takes the data of all tensors in order, Close checks that it was all of it.
type Writer struct {
	w         io.Writer
	remaining int64
}

// NewWriter writes the header for the tensors described by infos to w.
func NewWriter(w io.Writer, infos []Info, metadata map[string]string) (*Writer, error) {
	header, size, err := encodeHeader(infos, metadata)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(header); err != nil {
		return nil, fmt.Errorf("write safetensors header: %w", err)
	}
	return &Writer{w: w, remaining: size}, nil
}

func encodeHeader(infos []Info, metadata map[string]string) (header []byte, dataSize int64, err error) {
	var b bytes.Buffer
	b.Write(make([]byte, 8))
	b.WriteByte('{')
	put := func(key string, value any) error {
		if b.Len() > 9 {
			b.WriteByte(',')
		}
		for i, v := range []any{key, value} {
			if i == 1 {
				b.WriteByte(':')
			}
			j, err := json.Marshal(v)
			if err != nil {
				return err
			}
			b.Write(j)
		}
		return nil
	}
	if len(metadata) > 0 {
		if err := put(metadataKey, metadata); err != nil {
			return nil, 0, err
		}
	}
	names := make(map[string]bool, len(infos))
	for _, info := range infos {
		if info.Name == metadataKey || names[info.Name] {
			return nil, 0, fmt.Errorf("tensor name %q is reserved or there twice", info.Name)
		}
		names[info.Name] = true
		n, err := info.Bytes()
		if err != nil {
			return nil, 0, err
		}
		if n > math.MaxInt64-dataSize {
			return nil, 0, fmt.Errorf("the tensors up to %q: their size overflows", info.Name)
		}
		shape := info.Shape
		if shape == nil {
			shape = []int{}
		}
		if err := put(info.Name, entry{info.DType, shape, [2]int64{dataSize, dataSize + n}}); err != nil {
			return nil, 0, err
		}
		dataSize += n
	}
	b.WriteByte('}')
	for b.Len()%8 != 0 {
		b.WriteByte(' ')
	}
	if b.Len()-8 > MaxHeader {
		return nil, 0, fmt.Errorf("the header for %d tensors takes %d bytes: the limit is %d", len(infos), b.Len()-8, MaxHeader)
	}
	binary.LittleEndian.PutUint64(b.Bytes(), uint64(b.Len()-8))
	return b.Bytes(), dataSize, nil
}

// Write appends data of the tensors.
func (w *Writer) Write(p []byte) (int, error) {
	if int64(len(p)) > w.remaining {
		return 0, fmt.Errorf("write safetensors data: %d bytes, but the tensors described have only %d more", len(p), w.remaining)
	}
	n, err := w.w.Write(p)
	w.remaining -= int64(n)
	return n, err
}

// Close says whether all data was written. It does not close the underlying writer.
func (w *Writer) Close() error {
	if w.remaining != 0 {
		return fmt.Errorf("safetensors file ends %d bytes before the tensors described", w.remaining)
	}
	return nil
}

// Write writes whole tensors to w.
func Write(w io.Writer, tensors []Tensor, metadata map[string]string) error {
	infos := make([]Info, len(tensors))
	for i, t := range tensors {
		infos[i] = t.Info
		if n, err := t.Bytes(); err != nil {
			return err
		} else if int64(len(t.Data)) != n {
			return fmt.Errorf("tensor %q of %s %v has %d bytes of data: expected %d", t.Name, t.DType, t.Shape, len(t.Data), n)
		}
	}
	sw, err := NewWriter(w, infos, metadata)
	if err != nil {
		return err
	}
	for _, t := range tensors {
		if _, err := sw.Write(t.Data); err != nil {
			return fmt.Errorf("write tensor %q: %w", t.Name, err)
		}
	}
	return sw.Close()
}

// WriteFile writes tensors to a file, whole or not at all.
func WriteFile(path string, tensors []Tensor, metadata map[string]string) error {
	return Create(path, func(w io.Writer) error { return Write(w, tensors, metadata) })
}

// withoutPath removes the name of a temporary file from an error.
func withoutPath(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}

// Create writes a file atomically: a temporary file in the same directory is
// synced and renamed to path, then the directory is synced.
func Create(path string, write func(io.Writer) error) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, filepath.Base(path)+".tmp-*")
	if err != nil {
		return fmt.Errorf("write safetensors file %q: create a file in %q: %w", path, dir, withoutPath(err))
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
			err = fmt.Errorf("write safetensors file %q: %w", path, err)
		}
	}()
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if err := write(f); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// File is an opened file whose header was read and checked.
type File struct {
	Metadata map[string]string

	infos   []Info // in the order of their data
	offsets map[string]int64
	data    *io.SectionReader
}

// NewFile reads the header from r, which holds size bytes.
func NewFile(r io.ReaderAt, size int64) (*File, error) {
	var prefix [8]byte
	if _, err := r.ReadAt(prefix[:], 0); err != nil {
		return nil, fmt.Errorf("read safetensors header: %d bytes are no safetensors file: %w", size, noEOF(err))
	}
	n := binary.LittleEndian.Uint64(prefix[:])
	if n > MaxHeader || int64(n) > size-8 {
		return nil, fmt.Errorf("safetensors header of %d bytes declared at offset 0: the file has %d bytes, the limit is %d", n, size, MaxHeader)
	}
	header := make([]byte, n)
	if _, err := r.ReadAt(header, 8); err != nil {
		return nil, fmt.Errorf("read safetensors header: %w", noEOF(err))
	}
	f := &File{data: io.NewSectionReader(r, 8+int64(n), size-8-int64(n)), offsets: map[string]int64{}}
	if err := f.decode(header); err != nil {
		return nil, fmt.Errorf("safetensors header: %w", err)
	}
	return f, nil
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (f *File) decode(header []byte) error {
	if len(header) == 0 || header[0] != '{' {
		return errors.New("does not start with {")
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(header, &raw); err != nil {
		return err
	}
	if m, ok := raw[metadataKey]; ok {
		if err := json.Unmarshal(m, &f.Metadata); err != nil {
			return fmt.Errorf("%s: %w", metadataKey, err)
		}
		delete(raw, metadataKey)
	}
	entries := make(map[string]entry, len(raw))
	for name, message := range raw {
		var e entry
		decoder := json.NewDecoder(bytes.NewReader(message))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&e); err != nil {
			return fmt.Errorf("tensor %q: %w", name, err)
		}
		info := Info{name, e.DType, e.Shape}
		n, err := info.Bytes()
		if err != nil {
			return err
		}
		if e.Offsets[0] < 0 || e.Offsets[1]-e.Offsets[0] != n {
			return fmt.Errorf("tensor %q of %s %v has data_offsets %v: expected %d bytes", name, e.DType, e.Shape, e.Offsets, n)
		}
		entries[name], f.offsets[name] = e, e.Offsets[0]
		f.infos = append(f.infos, info)
	}
	slices.SortFunc(f.infos, func(a, b Info) int {
		return cmp.Or(
			cmp.Compare(entries[a.Name].Offsets[0], entries[b.Name].Offsets[0]),
			cmp.Compare(entries[a.Name].Offsets[1], entries[b.Name].Offsets[1]),
			strings.Compare(a.Name, b.Name),
		)
	})
	end := int64(0)
	for _, info := range f.infos {
		e := entries[info.Name]
		if e.Offsets[0] != end {
			return fmt.Errorf("tensor %q starts at data offset %d: expected %d, the end of the previous tensor", info.Name, e.Offsets[0], end)
		}
		end = e.Offsets[1]
	}
	if end != f.data.Size() {
		return fmt.Errorf("the tensors have %d bytes, the file holds %d", end, f.data.Size())
	}
	return nil
}

// Infos lists the tensors in the order of their data.
func (f *File) Infos() []Info { return f.infos }

// Open returns the data of one tensor, to be read piece by piece.
func (f *File) Open(name string) (*io.SectionReader, error) {
	i := slices.IndexFunc(f.infos, func(info Info) bool { return info.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("no tensor %q among the %d of the file", name, len(f.infos))
	}
	n, err := f.infos[i].Bytes()
	if err != nil {
		return nil, err
	}
	return io.NewSectionReader(f.data, f.offsets[name], n), nil
}

// ReadFile reads a whole file into memory.
func ReadFile(path string) (tensors []Tensor, metadata map[string]string, err error) {
	// A FIFO would block the open until something writes it.
	if err := filekind.CheckFile(path); err != nil {
		return nil, nil, fmt.Errorf("read safetensors file %s: %w", path, err)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read safetensors file: %w", err)
	}
	defer file.Close()
	stat, err := file.Stat()
	if err != nil {
		return nil, nil, fmt.Errorf("read safetensors file: %w", err)
	}
	f, err := NewFile(file, stat.Size())
	if err != nil {
		return nil, nil, fmt.Errorf("%s: not a safetensors file (a model of --save-model): %w", path, err)
	}
	if tensors, err = f.ReadAll(); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return tensors, f.Metadata, nil
}

// ReadAll reads all tensors into memory.
func (f *File) ReadAll() (tensors []Tensor, err error) {
	for _, info := range f.infos {
		n, err := info.Bytes()
		if err != nil {
			return nil, err
		}
		data := make([]byte, n)
		if _, err := f.data.ReadAt(data, f.offsets[info.Name]); err != nil && n > 0 { // an empty tensor may be at the end
			return nil, fmt.Errorf("read tensor %q: %w", info.Name, noEOF(err))
		}
		tensors = append(tensors, Tensor{info, data})
	}
	return tensors, nil
}
