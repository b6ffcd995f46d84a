package objectstore

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Cache keeps ranges of objects in a directory, so that a later pass does not request them again. Several processes can share the
// directory. An entry is a file:
//
//	bytes of the range
//	4 bytes  CRC-32C of the bytes and the name of the range, little-endian
//
// The name of the range has the URL, the stamp and the offset, and the file is named by its digest: another version of an object has other
// entries. Files in the directory are removed before they exceed the limit, beginning with the least recently used. The limit
// can be exceeded by a sixteenth for each process. If an entry cannot be read or written, the bytes come from the store.
type Cache struct {
	dir   string
	limit int64

	mu   sync.Mutex
	room int64 // bytes that may be written before the directory is looked at again
}

const (
	cacheSuffix   = ".range"
	partialSuffix = ".partial"
	sumBytes      = 4
	// abandonedAfter is the age of an unfinished entry whose process has ended.
	abandonedAfter = time.Hour
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// NewCache creates the directory if it does not exist. limit is in bytes.
func NewCache(dir string, limit int64) (*Cache, error) {
	if limit <= 0 {
		return nil, fmt.Errorf("cache %s: expected a limit of 1 byte or more, found %d", dir, limit)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	probe, err := os.CreateTemp(dir, "probe*"+partialSuffix)
	if err != nil {
		return nil, fmt.Errorf("cache: expected a directory that can be written: %w", err)
	}
	if err := errors.Join(probe.Close(), os.Remove(probe.Name())); err != nil {
		return nil, err
	}
	c := &Cache{dir: dir, limit: limit}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trimLocked(0)
	return c, nil
}

// entry is a range of one version of an object.
type entry struct {
	cache *Cache
	name  string
	path  string
}

func (c *Cache) entry(url, endpoint, stamp string, off int64, n int) entry {
	name := fmt.Sprintf("%q %q %q %d %d", url, endpoint, stamp, off, n)
	return entry{c, name, filepath.Join(c.dir, fmt.Sprintf("%x%s", sha256.Sum256([]byte(name)), cacheSuffix))}
}

func (e entry) sum(p []byte) []byte {
	return binary.LittleEndian.AppendUint32(nil, crc32.Update(crc32.Checksum(p, castagnoli), castagnoli, []byte(e.name)))
}

// read fills p. It returns false if there is no whole entry.
func (e entry) read(p []byte) bool {
	file, err := os.Open(e.path)
	if err != nil {
		return false
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || info.Size() != int64(len(p)+sumBytes) {
		return false
	}
	var sum [sumBytes]byte
	if _, err := file.ReadAt(p, 0); err != nil {
		return false
	}
	if _, err := file.ReadAt(sum[:], int64(len(p))); err != nil {
		return false
	}
	//guard:cache-entry-checksum
	if string(e.sum(p)) != string(sum[:]) {
		return false
	}
	now := time.Now()
	_ = os.Chtimes(e.path, now, now) // the time of the last use
	return true
}

// write stores the bytes of the range. A failure leaves no entry.
func (e entry) write(p []byte) {
	size := int64(len(p) + sumBytes)
	if size > e.cache.limit || !e.cache.reserve(size) {
		return
	}
	file, err := os.CreateTemp(e.cache.dir, "*"+partialSuffix)
	if err != nil {
		return
	}
	_, err = file.Write(p)
	if err == nil {
		_, err = file.Write(e.sum(p))
	}
	if errors.Join(err, file.Close()) != nil || os.Rename(file.Name(), e.path) != nil {
		_ = os.Remove(file.Name()) // the file is removed later, like the files of killed processes
	}
}

// reserve makes room for size bytes.
func (c *Cache) reserve(size int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.room < size {
		c.trimLocked(size)
	}
	if c.room < size {
		return false
	}
	c.room -= size
	return true
}

// trimLocked removes old files until size bytes and a sixteenth of the limit have room.
func (c *Cache) trimLocked(size int64) {
	type file struct {
		path string
		used time.Time
		size int64
	}
	var files []file
	total := int64(0)
	found, err := os.ReadDir(c.dir)
	if err != nil {
		c.room = 0
		return
	}
	for _, f := range found {
		info, err := f.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue // removed in between, or not of a cache
		}
		path := filepath.Join(c.dir, f.Name())
		switch {
		case strings.HasSuffix(f.Name(), cacheSuffix):
			files = append(files, file{path, info.ModTime(), info.Size()})
			total += info.Size()
		case strings.HasSuffix(f.Name(), partialSuffix) && time.Since(info.ModTime()) > abandonedAfter:
			_ = os.Remove(path)
		}
	}
	slices.SortFunc(files, func(a, b file) int { return cmp.Or(a.used.Compare(b.used), strings.Compare(a.path, b.path)) })
	step := max(size, c.limit/16)
	//guard:cache-limit
	for _, f := range files {
		if total+step <= c.limit {
			break
		}
		if err := os.Remove(f.path); err == nil || errors.Is(err, fs.ErrNotExist) {
			total -= f.size
		}
	}
	c.room = min(step, c.limit-total)
}
