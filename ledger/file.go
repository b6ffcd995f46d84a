package ledger

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"iter"
	"math"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"

	"trainmaster/taskqueue"
)

// ErrDamaged says that a sealed file is missing, or not what was written.
var ErrDamaged = errors.New("damaged ledger")

// Entry is what one commit wrote into the ledger.
type Entry struct {
	Commit uint64
	Events []byte
}

// Header begins a sealed file and identifies it.
type Header struct {
	Job     string            `json:"job"`
	ID      string            `json:"id"`    // of the job, hexadecimal
	First   uint64            `json:"first"` // commits that the file covers,
	Last    uint64            `json:"last"`  // both included; those without events have no entry
	Entries int               `json:"entries"`
	Newest  int64             `json:"newest_ms"` // when the last of them was made, milliseconds since 1970
	Before  string            `json:"before"`    // name of the file that ends at First-1; "": there was none
	Outline taskqueue.Outline `json:"outline"`   // of the ledger before First
}

// The bytes of a sealed file; docs/formats/sealed_ledger.md draws them.
const (
	magic       = "TMSEALED"
	fileVersion = 1
	fixedBytes  = len(magic) + 8 // magic, version, length of the header
	crcBytes    = 4
	blockBytes  = 64 << 10 // of entries, before compression
	maxHeader   = 16 << 20
	maxBlock    = 64 << 20 // decompressed
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var encoder = sync.OnceValues(func() (*zstd.Encoder, error) {
	return zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(blockBytes), zstd.WithLowerEncoderMem(true))
})

var decoder = sync.OnceValues(func() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxBlock))
})

// Encode makes a sealed file of entries with rising commits within the range of the header.
func Encode(h Header, entries []Entry) ([]byte, error) {
	zip, err := encoder()
	if err != nil {
		return nil, fmt.Errorf("seal the ledger: %w", err)
	}
	h.Entries = len(entries)
	head, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("seal the ledger: %w", err)
	}
	out := append([]byte(nil), magic...)
	out = binary.LittleEndian.AppendUint32(out, fileVersion)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(head)))
	out = append(out, head...)
	out = appendCRC(out, 0)
	block := make([]byte, 0, blockBytes+blockBytes/4)
	flush := func() {
		at := len(out)
		out = append(out, 0, 0, 0, 0)
		out = binary.LittleEndian.AppendUint32(out, uint32(len(block)))
		out = zip.EncodeAll(block, out)
		binary.LittleEndian.PutUint32(out[at:], uint32(len(out)-at-8))
		out = appendCRC(out, at)
		block = block[:0]
	}
	last := h.First - 1
	for _, e := range entries {
		if e.Commit <= last || e.Commit > h.Last {
			return nil, fmt.Errorf("seal the ledger: commit %d after %d in a file that ends at %d", e.Commit, last, h.Last)
		}
		block = binary.AppendUvarint(block, e.Commit-last)
		block = binary.AppendUvarint(block, uint64(len(e.Events)))
		block = append(block, e.Events...)
		last = e.Commit
		if len(block) >= blockBytes {
			flush()
		}
	}
	if len(block) > 0 {
		flush()
	}
	at := len(out)
	return appendCRC(append(out, 0, 0, 0, 0), at), nil
}

func appendCRC(b []byte, from int) []byte {
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[from:], castagnoli))
}

func digestOf(file []byte) string {
	d := sha256.Sum256(file)
	return hex.EncodeToString(d[:])
}

// damage is what is wrong with a sealed file, and where.
func damage(name string, offset int, format string, args ...any) error {
	return fmt.Errorf("%w: sealed file %s: at byte %d: %w; restore the file from a backup", ErrDamaged, name, offset, fmt.Errorf(format, args...))
}

// checked returns the bytes of a part that ends with its checksum, from at on; n is without
// the checksum.
func checked(name string, file []byte, at, n int) ([]byte, error) {
	if n > len(file)-at-crcBytes {
		return nil, damage(name, at, "expected %d bytes, found %d", n+crcBytes, len(file)-at)
	}
	part := file[at : at+n]
	if found, want := crc32.Checksum(part, castagnoli), binary.LittleEndian.Uint32(file[at+n:]); found != want {
		return nil, damage(name, at, "expected the checksum %08x, found %08x", want, found)
	}
	return part, nil
}

// headerBytes is how many bytes the header with its frame has, by the first fixedBytes of a
// file.
func headerBytes(name string, file []byte) (int, error) {
	if len(file) < fixedBytes || string(file[:len(magic)]) != magic {
		return 0, damage(name, 0, "expected %q and a header, found %.16q", magic, file[:min(len(file), fixedBytes)])
	}
	if v := binary.LittleEndian.Uint32(file[len(magic):]); v != fileVersion {
		return 0, damage(name, len(magic), "expected version %d, found %d: read it with a newer program, if it is whole", fileVersion, v)
	}
	n := binary.LittleEndian.Uint32(file[len(magic)+4:])
	if n > maxHeader {
		return 0, damage(name, len(magic)+4, "a header of %d bytes", n)
	}
	return fixedBytes + int(n) + crcBytes, nil
}

// DecodeHeader reads the header at the beginning of a file's bytes. name is for messages.
func DecodeHeader(name string, file []byte) (h Header, size int, err error) {
	size, err = headerBytes(name, file)
	if err != nil {
		return h, 0, err
	}
	part, err := checked(name, file, 0, size-crcBytes)
	if err != nil {
		return h, 0, err
	}
	if err := json.Unmarshal(part[fixedBytes:], &h); err != nil {
		return h, 0, damage(name, fixedBytes, "expected a header in JSON: %w", err)
	}
	if h.First == 0 || h.Last < h.First || h.Outline.Commit >= h.First {
		return h, 0, damage(name, fixedBytes, "commits %d to %d, after an outline of commit %d", h.First, h.Last, h.Outline.Commit)
	}
	return h, size, nil
}

// Decode reads a whole file's bytes; nothing is yielded before its block is found right.
func Decode(name string, file []byte) (Header, iter.Seq2[Entry, error], error) {
	h, at, err := DecodeHeader(name, file)
	if err != nil {
		return h, nil, err
	}
	return h, func(yield func(Entry, error) bool) {
		d := blocks{name: name, file: file, at: at, last: h.First - 1}
		for n := 0; ; {
			entries, more, err := d.next(h.Last)
			n += len(entries)
			if err == nil && !more && n != h.Entries {
				err = damage(name, d.at, "expected %d entries as in the header, found %d", h.Entries, n)
			}
			for _, e := range entries {
				if !yield(e, nil) {
					return
				}
			}
			if err != nil {
				yield(Entry{}, err)
			}
			if err != nil || !more {
				return
			}
		}
	}, nil
}

// blocks walks the blocks of a file.
type blocks struct {
	name string
	file []byte
	at   int
	last uint64 // commit
}

// next decodes a block; more is false at the end of the file.
func (d *blocks) next(limit uint64) (entries []Entry, more bool, err error) {
	at := d.at
	if len(d.file)-at < 4 {
		return nil, false, damage(d.name, at, "expected a block or the end mark, found %d bytes", len(d.file)-at)
	}
	n := binary.LittleEndian.Uint32(d.file[at:])
	if n == 0 {
		if _, err := checked(d.name, d.file, at, 4); err != nil {
			return nil, false, err
		}
		if d.at = at + 4 + crcBytes; d.at != len(d.file) {
			return nil, false, damage(d.name, d.at, "%d bytes after the end mark", len(d.file)-d.at)
		}
		return nil, false, nil
	}
	if n > math.MaxInt32-16 {
		return nil, false, damage(d.name, at, "a block of %d bytes", n)
	}
	part, err := checked(d.name, d.file, at, 8+int(n))
	if err != nil {
		return nil, false, err
	}
	unzip, err := decoder()
	if err != nil {
		return nil, false, fmt.Errorf("read sealed file %s: %w", d.name, err)
	}
	size := binary.LittleEndian.Uint32(part[4:])
	plain, err := unzip.DecodeAll(part[8:], make([]byte, 0, min(size, maxBlock)))
	if err != nil || len(plain) != int(size) {
		return nil, false, damage(d.name, at, "expected a block of %d bytes when decompressed, found %d: %w", size, len(plain), err)
	}
	d.at = at + 8 + int(n) + crcBytes
	for in := bytes.NewReader(plain); in.Len() > 0; {
		delta, err1 := binary.ReadUvarint(in)
		length, err2 := binary.ReadUvarint(in)
		if err1 != nil || err2 != nil || delta == 0 || delta > limit-d.last || length > uint64(in.Len()) {
			return entries, false, damage(d.name, at, "the entry after commit %d does not fit its block", d.last)
		}
		d.last += delta
		from := len(plain) - in.Len()
		entries = append(entries, Entry{d.last, slices.Clip(plain[from : from+int(length)])})
		_, _ = in.Seek(int64(length), 1) // within the remaining bytes
	}
	return entries, true, nil
}
