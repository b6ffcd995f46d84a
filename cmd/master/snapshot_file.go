package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"iter"
	"os"
	"path/filepath"

	"trainmaster/taskqueue"
)

// The bytes of a snapshot file; docs/formats/snapshot.md draws them.
const (
	snapshotMagic   = "TMBACKUP"
	snapshotVersion = 1
	maxSnapshotHead = 1 << 20
	maxSnapshotItem = 64 << 20
)

// errSnapshotFile says that a file is no snapshot, or not whole any more.
var errSnapshotFile = errors.New("no whole snapshot")

// snapshotHead begins a snapshot file and says what is in it.
type snapshotHead struct {
	Job      string            `json:"job"`
	JobID    string            `json:"job_id"`
	Cluster  string            `json:"cluster"` // of etcd
	Revision int64             `json:"revision"`
	Format   int               `json:"format"` // of the state
	Commit   uint64            `json:"commit"`
	Epoch    uint32            `json:"epoch"`
	Status   string            `json:"status"`
	Restores uint8             `json:"restores"`
	Record   bool              `json:"record"` // it has the job's record
	TakenAt  string            `json:"taken_at"`
	TakenBy  string            `json:"taken_by"`
	Datasets []snapshotDataset `json:"datasets"`
}

type snapshotDataset struct {
	Dataset  int `json:"dataset"`
	Tasks    int `json:"tasks"`
	Pass     int `json:"pass"`
	Done     int `json:"done"`
	Pending  int `json:"pending"` // delivered again after a restore; so are those to be retried
	Retry    int `json:"retry"`
	SetAside int `json:"set_aside"`
}

// writeSnapshot writes a file that is there as a whole or not at all.
func writeSnapshot(path string, head *snapshotHead, items iter.Seq2[taskqueue.Write, error]) error {
	dir := filepath.Dir(path)
	file, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*.tmp")
	if err != nil {
		return fmt.Errorf("write snapshot %q: %w", path, err)
	}
	defer os.Remove(file.Name()) // unless it was renamed
	defer file.Close()           // unless it was closed
	buffered := bufio.NewWriterSize(file, 1<<20)
	digest := sha256.New()
	if err := encodeSnapshot(io.MultiWriter(buffered, digest), head, items); err != nil {
		return err
	}
	_, err = buffered.Write(digest.Sum(nil))
	for _, step := range []func() error{buffered.Flush, file.Sync, file.Close, func() error { return os.Rename(file.Name(), path) }, func() error { return syncFolder(dir) }} {
		if err == nil {
			err = step()
		}
	}
	if err != nil {
		return fmt.Errorf("write snapshot %q: %w", path, err)
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

func encodeSnapshot(w io.Writer, head *snapshotHead, items iter.Seq2[taskqueue.Write, error]) error {
	text, err := json.Marshal(head)
	if err != nil {
		return err
	}
	begin := binary.LittleEndian.AppendUint32([]byte(snapshotMagic), snapshotVersion)
	begin = binary.LittleEndian.AppendUint32(begin, uint32(len(text))) //nolint:gosec // far below 4 GiB
	if _, err := w.Write(append(begin, text...)); err != nil {
		return err
	}
	zip, err := gzip.NewWriterLevel(w, gzip.BestSpeed) // most of it is compressed already
	if err != nil {
		return err
	}
	var lengths []byte
	for item, err := range items {
		if err != nil {
			return err
		}
		lengths = binary.AppendUvarint(lengths[:0], uint64(len(item.Key)))
		lengths = binary.AppendUvarint(lengths, uint64(len(item.Value)))
		for _, b := range [][]byte{lengths, []byte(item.Key), item.Value} {
			if _, err := zip.Write(b); err != nil {
				return err
			}
		}
	}
	if _, err := zip.Write([]byte{0, 0}); err != nil { // the end: no key
		return err
	}
	return zip.Close()
}

// snapshotFile is one that was found whole.
type snapshotFile struct {
	path   string
	head   snapshotHead
	digest string
	size   int64
	begin  int64 // of the items
}

// openSnapshot reads all of a file once, to see that it is whole.
func openSnapshot(path string) (*snapshotFile, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, usageErrorf("read snapshot: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	s := &snapshotFile{path: path, size: info.Size()}
	digest := sha256.New()
	if err := s.check(file, digest); err != nil {
		return nil, fmt.Errorf("%w: %q: %w", errSnapshotFile, path, err)
	}
	s.digest = fmt.Sprintf("%x", digest.Sum(nil))
	return s, nil
}

func (s *snapshotFile) check(file io.Reader, digest hash.Hash) error {
	begin := make([]byte, len(snapshotMagic)+8)
	hashed := io.TeeReader(bufio.NewReaderSize(file, 1<<20), digest)
	if _, err := io.ReadFull(hashed, begin); err != nil || string(begin[:len(snapshotMagic)]) != snapshotMagic {
		return fmt.Errorf("expected it to begin with %q", snapshotMagic)
	}
	if v := binary.LittleEndian.Uint32(begin[len(snapshotMagic):]); v != snapshotVersion {
		return fmt.Errorf("expected version %d, found %d: read it with a newer program", snapshotVersion, v)
	}
	n := int64(binary.LittleEndian.Uint32(begin[len(snapshotMagic)+4:]))
	s.begin = int64(len(begin)) + n
	rest := s.size - s.begin - sha256.Size
	if n > maxSnapshotHead || rest < 0 {
		return fmt.Errorf("a head of %d bytes in a file of %d", n, s.size)
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
	if err := json.Unmarshal(text, &s.head); err != nil {
		return fmt.Errorf("expected a head in JSON: %w", err)
	}
	return nil
}

// items yields what the file holds, in its order.
func (s *snapshotFile) items() iter.Seq2[taskqueue.Write, error] {
	return func(yield func(taskqueue.Write, error) bool) {
		if err := s.walk(func(w taskqueue.Write) bool { return yield(w, nil) }); err != nil {
			yield(taskqueue.Write{}, fmt.Errorf("%w: %q: %w", errSnapshotFile, s.path, err))
		}
	}
}

func (s *snapshotFile) walk(each func(taskqueue.Write) bool) error {
	file, err := os.Open(s.path)
	if err != nil {
		return err
	}
	defer file.Close()
	zip, err := gzip.NewReader(bufio.NewReaderSize(io.NewSectionReader(file, s.begin, s.size-s.begin-sha256.Size), 1<<20))
	if err != nil {
		return err
	}
	in := bufio.NewReaderSize(zip, 1<<20)
	for {
		var lengths [2]uint64
		for i := range lengths {
			if lengths[i], err = binary.ReadUvarint(in); err != nil || lengths[i] > maxSnapshotItem {
				return fmt.Errorf("an item of %d bytes, %w", lengths[i], err)
			}
		}
		if lengths[0] == 0 {
			return nil
		}
		both := make([]byte, lengths[0]+lengths[1])
		if _, err := io.ReadFull(in, both); err != nil {
			return err
		}
		if !each(taskqueue.Write{Key: string(both[:lengths[0]]), Value: both[lengths[0]:]}) {
			return nil
		}
	}
}
