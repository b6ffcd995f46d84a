// Package snapshot implements the file format of a job snapshot. A file contains the keys of a job in etcd at one
// revision and, optionally, the files of a checkpoint set with its model. docs/formats/snapshot.md describes the bytes.
//
// A file appears when it is complete. A digest at its end covers all bytes, so a truncated or changed file is rejected. Files of
// checkpoints are streamed, so their size is not limited by memory.
package snapshot

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"

	"trainmaster/taskqueue"
)

const (
	magic = "TMBACKUP"

	plainVersion = 3
	filesVersion = 4 // with files of checkpoints

	maxHead = 1 << 20
	maxItem = 64 << 20
	maxPath = 4 << 10
)

// ErrDamaged says that a file is no snapshot, or not whole any more.
var ErrDamaged = errors.New("no whole snapshot")

// Head begins a snapshot and describes its content.
type Head struct {
	Job      string    `json:"job"`
	JobID    string    `json:"job_id"`
	Cluster  string    `json:"cluster"`            // of etcd
	Revision int64     `json:"revision,omitempty"` // of etcd; 0: written by a master, with a checkpoint set
	Format   int       `json:"format"`             // of the state
	Commit   uint64    `json:"commit"`
	Epoch    uint32    `json:"epoch"`
	Status   string    `json:"status"`
	Restores uint8     `json:"restores"`
	Ledger   bool      `json:"ledger"`        // it has the job's ledger
	Set      uint64    `json:"set,omitempty"` // of checkpoints, at whose cut the state is; 0: it is of another moment
	Model    bool      `json:"model"`         // it has the files of that set
	TakenAt  string    `json:"taken_at,omitempty"`
	TakenBy  string    `json:"taken_by,omitempty"`
	Datasets []Dataset `json:"datasets"`
}

// Dataset is how far a dataset is.
type Dataset struct {
	Dataset  int `json:"dataset"`
	Tasks    int `json:"tasks"`
	Pass     int `json:"pass"`
	Done     int `json:"done"`
	Pending  int `json:"pending"` // delivered again after a restore; so are those to be retried
	Retry    int `json:"retry"`
	SetAside int `json:"set_aside"`
}

// DatasetsOf says how far the datasets of a queue are.
func DatasetsOf(q *taskqueue.Queue) []Dataset {
	list := []Dataset{}
	for i, v := range q.Overview().Sets {
		list = append(list, Dataset{i, v.Tasks, int(v.Pass), v.Done, v.Pending, v.Retry, v.SetAside})
	}
	return list
}

// Item is a key of the job, below its prefix, and its value.
type Item = taskqueue.Write

// Content is what goes into a snapshot.
type Content struct {
	Head  Head
	Items iter.Seq2[Item, error]
	Files iter.Seq2[Member, error] // nil: none
}

// Member is a file of a set of checkpoints.
type Member struct {
	Path string // relative to the checkpoint directory, with slashes
	Size int64
	Data io.Reader
}

// Write writes a file atomically.
func Write(path string, c Content) error {
	dir := filepath.Dir(path)
	file, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*.tmp")
	if err != nil {
		if temporary, ok := errors.AsType[*fs.PathError](err); ok { // whose name says nothing to users
			err = temporary.Err
		}
		return fmt.Errorf("write snapshot %q: create a file in %q: %w", path, dir, err)
	}
	defer os.Remove(file.Name()) // unless it was renamed
	defer file.Close()           // unless it was closed
	buffered := bufio.NewWriterSize(file, 1<<20)
	if err := Encode(buffered, c); err != nil {
		return err
	}
	for _, step := range []func() error{buffered.Flush, file.Sync, file.Close, func() error { return os.Rename(file.Name(), path) }, func() error { return syncFolder(dir) }} {
		if err := step(); err != nil {
			return fmt.Errorf("write snapshot %q: %w", path, err)
		}
	}
	return nil
}

func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Encode writes the bytes of a snapshot.
func Encode(out io.Writer, c Content) error {
	digest := sha256.New()
	w := io.MultiWriter(out, digest)
	text, err := json.Marshal(c.Head)
	if err != nil {
		return err
	}
	version := uint32(plainVersion)
	if c.Files != nil {
		version = filesVersion
	}
	begin := binary.LittleEndian.AppendUint32([]byte(magic), version)
	begin = binary.LittleEndian.AppendUint32(begin, uint32(len(text))) //nolint:gosec // far below 4 GiB
	if _, err := w.Write(append(begin, text...)); err != nil {
		return err
	}
	if err := encodeItems(w, c.Items); err != nil {
		return err
	}
	if c.Files != nil {
		if err := encodeFiles(w, c.Files); err != nil {
			return err
		}
	}
	_, err = out.Write(digest.Sum(nil))
	return err
}

// lengths encodes the lengths of a key and its value, or of a path and its file.
func lengths(key, value uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(nil, key), value)
}

func encodeItems(w io.Writer, items iter.Seq2[Item, error]) error {
	zip, err := gzip.NewWriterLevel(w, gzip.BestSpeed) // most of it is compressed already
	if err != nil {
		return err
	}
	for item, err := range items {
		if err != nil {
			return err
		}
		for _, b := range [][]byte{lengths(uint64(len(item.Key)), uint64(len(item.Value))), []byte(item.Key), item.Value} {
			if _, err := zip.Write(b); err != nil {
				return err
			}
		}
	}
	if _, err := zip.Write(lengths(0, 0)); err != nil { // the end: no key
		return err
	}
	return zip.Close()
}

func encodeFiles(w io.Writer, files iter.Seq2[Member, error]) error {
	for f, err := range files {
		if err != nil {
			return err
		}
		if _, err := w.Write(append(lengths(uint64(len(f.Path)), uint64(f.Size)), f.Path...)); err != nil { //nolint:gosec // no file is smaller than nothing
			return err
		}
		if n, err := io.Copy(w, f.Data); err != nil || n != f.Size {
			return errors.Join(fmt.Errorf("%s: expected %d bytes, found %d", f.Path, f.Size, n), err)
		}
	}
	_, err := w.Write(lengths(0, 0))
	return err
}

// File is a verified snapshot.
type File struct {
	Name   string
	Head   Head
	Digest string // hexadecimal
	Size   int64

	open  func() (io.ReaderAt, io.Closer, error)
	begin int64 // of the items
	files bool  // it has some
}

// Open reads all of a file once, to see that it is whole. An error of opening it is an [fs.PathError].
func Open(path string) (*File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // a FIFO would block the open
		return nil, fmt.Errorf("%s: expected a regular file, found %v", path, info.Mode())
	}
	return find(path, info.Size(), func() (io.ReaderAt, io.Closer, error) {
		f, err := os.Open(path)
		return f, f, err
	})
}

// Parse is like Open, for bytes in memory.
func Parse(name string, b []byte) (*File, error) {
	return find(name, int64(len(b)), func() (io.ReaderAt, io.Closer, error) { return bytes.NewReader(b), io.NopCloser(nil), nil })
}

func find(name string, size int64, open func() (io.ReaderAt, io.Closer, error)) (*File, error) {
	in, closer, err := open()
	if err != nil {
		return nil, err
	}
	defer closer.Close()
	f := &File{Name: name, Size: size, open: open}
	if err := f.check(io.NewSectionReader(in, 0, size)); err != nil {
		return nil, fmt.Errorf("%w: %q: %w", ErrDamaged, name, err)
	}
	return f, nil
}

func (f *File) check(in io.Reader) error {
	digest := sha256.New()
	begin := make([]byte, len(magic)+8)
	hashed := io.TeeReader(bufio.NewReaderSize(in, 1<<20), digest)
	if _, err := io.ReadFull(hashed, begin); err != nil || string(begin[:len(magic)]) != magic {
		return fmt.Errorf("expected it to begin with %q", magic)
	}
	v := binary.LittleEndian.Uint32(begin[len(magic):])
	if v < plainVersion || v > filesVersion {
		return fmt.Errorf("expected version %d or %d, found %d: read the file with the release that wrote it", plainVersion, filesVersion, v)
	}
	f.files = v == filesVersion
	n := int64(binary.LittleEndian.Uint32(begin[len(magic)+4:]))
	f.begin = int64(len(begin)) + n
	rest := f.Size - f.begin - sha256.Size
	if n > maxHead || rest < 0 {
		return fmt.Errorf("a head of %d bytes in a file of %d", n, f.Size)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(hashed, text); err != nil {
		return err
	}
	if _, err := io.CopyN(io.Discard, hashed, rest); err != nil {
		return err
	}
	want := digest.Sum(nil)
	found := make([]byte, sha256.Size)
	if _, err := io.ReadFull(hashed, found); err != nil {
		return err
	}
	if !bytes.Equal(found, want) {
		return fmt.Errorf("expected the digest %.16x, found %.16x: it was cut short or changed; take another one", want, found)
	}
	f.Digest = fmt.Sprintf("%x", digest.Sum(nil))
	if err := json.Unmarshal(text, &f.Head); err != nil {
		return fmt.Errorf("expected a head in JSON: %w", err)
	}
	return nil
}

// Items yields the keys that the file holds, in its order.
func (f *File) Items() iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		if err := f.walk(func(i Item) bool { return yield(i, nil) }, nil); err != nil {
			yield(Item{}, fmt.Errorf("%w: %q: %w", ErrDamaged, f.Name, err))
		}
	}
}

// Files yields the checkpoint files of the snapshot in order. Data must be read before the next iteration.
func (f *File) Files() iter.Seq2[Member, error] {
	return func(yield func(Member, error) bool) {
		if !f.files {
			return
		}
		if err := f.walk(func(Item) bool { return true }, func(m Member) bool { return yield(m, nil) }); err != nil {
			yield(Member{}, fmt.Errorf("%w: %q: %w", ErrDamaged, f.Name, err))
		}
	}
}

// walk calls item with all items, then file with all files, until a callback returns false.
func (f *File) walk(item func(Item) bool, file func(Member) bool) error {
	in, closer, err := f.open()
	if err != nil {
		return err
	}
	defer closer.Close()
	raw := bufio.NewReaderSize(io.NewSectionReader(in, f.begin, f.Size-f.begin-sha256.Size), 1<<20)
	more, err := walkItems(raw, item)
	if err != nil || !more || file == nil {
		return err
	}
	for {
		path, size, err := readLengths(raw)
		if err != nil || path == 0 {
			return err
		}
		if path > maxPath {
			return fmt.Errorf("a path of %d bytes", path)
		}
		name := make([]byte, path)
		if _, err := io.ReadFull(raw, name); err != nil {
			return err
		}
		data := io.LimitReader(raw, int64(size))            //nolint:gosec // a digest covers it
		if !file(Member{string(name), int64(size), data}) { //nolint:gosec // a digest covers it
			return nil
		}
		if _, err := io.Copy(io.Discard, data); err != nil { // the rest that the caller did not read
			return err
		}
	}
}

func readLengths(in io.ByteReader) (first, second uint64, err error) {
	if first, err = binary.ReadUvarint(in); err != nil {
		return 0, 0, err
	}
	second, err = binary.ReadUvarint(in)
	return first, second, err
}

// walkItems leaves in at what follows the items, if more.
func walkItems(in *bufio.Reader, item func(Item) bool) (more bool, err error) {
	zip, err := gzip.NewReader(in)
	if err != nil {
		return false, err
	}
	zip.Multistream(false)
	unpacked := bufio.NewReaderSize(zip, 1<<20)
	for {
		key, value, err := readLengths(unpacked)
		switch {
		case err != nil:
			return false, err
		case key > maxItem || value > maxItem:
			return false, fmt.Errorf("an item of %d and %d bytes", key, value)
		case key == 0:
			_, err := io.Copy(io.Discard, unpacked) // the checksum at its end
			return true, err
		}
		both := make([]byte, key+value)
		if _, err := io.ReadFull(unpacked, both); err != nil {
			return false, err
		}
		if !item(Item{Key: string(both[:key]), Value: both[key:]}) {
			return false, nil
		}
	}
}

// DatasetKey returns the key of the list of [DataFile]s of a dataset, as JSON, in a snapshot without task tables. etcd
// has no such key.
func DatasetKey(dataset int) string { return fmt.Sprintf("%s%d", DatasetPrefix, dataset) }

// DatasetPrefix begins the keys of DatasetKey.
const DatasetPrefix = "/datasets/"

// DataFile is a file of a dataset.
type DataFile struct {
	Path  string `json:"path"`
	Size  int64  `json:"size"`
	Index string `json:"index"` // taskqueue.Table.IndexDigest, hexadecimal

	Checksums string `json:"checksums,omitempty"` // taskqueue.Table.ChecksumsDigest, hexadecimal; "": not known
}
