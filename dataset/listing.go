package dataset

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"trainmaster/recordio"
)

// File is one file of a dataset as it was when it was listed.
type File struct {
	Path    string                    // absolute, cleaned, symlinks as they were named; or a URL.
	Size    int64                     // bytes, or records of a range
	ModTime time.Time                 // not part of the dataset's identity.
	ETag    string                    // of an object in a store, not part of the dataset's identity.
	Header  [recordio.HeaderSize]byte // the first bytes of the file, then zero bytes if it is shorter: the header of the first chunk of a RecordIO file
}

// Stamp is what Check compares.
func (f File) Stamp() Stamp { return Stamp{Size: f.Size, ModTime: f.ModTime.UnixNano(), ETag: f.ETag} }

// Listing is a dataset: its files sorted by path, each of them once, and their digest.
type Listing struct {
	Files  []File
	Digest [sha256.Size]byte
}

// Digest returns the SHA-256 that identifies a dataset. The files must be sorted by path. The input of the hash is, for
// each file:
//
//	path     its bytes, then one zero byte
//	size     8 bytes, little-endian
//	header   the first 20 bytes of the file
//
// The header of a RecordIO file has the checksum of the first chunk, so a rewritten file has another digest even with the same
// path and size. A TFRecord file has no such checksum at its beginning: readers compare the checksum of each chunk with the index.
// The modification time is omitted, so a copy is the same dataset.
func Digest(files []File) [sha256.Size]byte {
	h := sha256.New()
	var b []byte
	for i := range files {
		b = append(b[:0], files[i].Path...)
		b = append(b, 0)
		b = binary.LittleEndian.AppendUint64(b, uint64(files[i].Size))
		b = append(b, files[i].Header[:]...)
		h.Write(b)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// Entry is what Difference compares of a file.
type Entry struct {
	Path string
	Size int64
}

// Entries are the paths and sizes of the files.
func (l Listing) Entries() []Entry {
	entries := make([]Entry, len(l.Files))
	for i := range l.Files {
		entries[i] = Entry{Path: l.Files[i].Path, Size: l.Files[i].Size}
	}
	return entries
}

// named is how many paths a sentence of Difference gives for each kind of difference.
const named = 3

// Difference says in one sentence how the list want differs from the list have, which a job already has. It is empty when
// they have the same paths and sizes, in whatever order.
func Difference(have, want []Entry) string {
	byPath := func(a, b Entry) int { return strings.Compare(a.Path, b.Path) }
	have, want = slices.SortedFunc(slices.Values(have), byPath), slices.SortedFunc(slices.Values(want), byPath)
	var missing, added, resized []string
	i, j := 0, 0
	for i < len(have) || j < len(want) {
		switch {
		case j == len(want) || i < len(have) && have[i].Path < want[j].Path:
			missing = append(missing, have[i].Path)
			i++
		case i == len(have) || want[j].Path < have[i].Path:
			added = append(added, want[j].Path)
			j++
		default:
			if have[i].Size != want[j].Size {
				resized = append(resized, fmt.Sprintf("%s (%d bytes, not %d)", want[j].Path, want[j].Size, have[i].Size))
			}
			i++
			j++
		}
	}
	var kinds []string
	for _, kind := range []struct {
		what  string
		paths []string
	}{{"missing", missing}, {"added", added}, {"of another size", resized}} {
		if len(kind.paths) > 0 {
			kinds = append(kinds, fmt.Sprintf("%d %s: %s", len(kind.paths), kind.what, firstOf(kind.paths)))
		}
	}
	if len(kinds) == 0 {
		return ""
	}
	return fmt.Sprintf("the job's dataset has %s, this one has %d; %s", files(len(have)), len(want), strings.Join(kinds, "; "))
}

func firstOf(paths []string) string {
	if len(paths) <= named {
		return strings.Join(paths, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(paths[:named], ", "), len(paths)-named)
}

func files(n int) string {
	if n == 1 {
		return "1 file"
	}
	return fmt.Sprintf("%d files", n)
}
