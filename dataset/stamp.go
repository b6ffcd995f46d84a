package dataset

import (
	"fmt"
	"io/fs"
	"os"
	"time"
)

// Stamp distinguishes a file from a later file at the same path.
type Stamp struct {
	Size    int64
	ModTime int64 // Unix time in nanoseconds
	// ETag identifies the version of an object in a store, by its ETag or generation. Files of the local file system have none.
	ETag string
}

// Check is nil while the file at path is unchanged since s was taken, by size and modification time. Otherwise it wraps
// ErrReplaced and names the difference. The version of an object in a store is checked by each read instead.
func Check(path string, s Stamp) error {
	if IsURL(path) {
		return nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrReplaced, err)
	}
	return s.check(path, info)
}

// Compare is nil if found is the stamp of the same version of an object. Otherwise it wraps ErrReplaced and names the difference.
func (s Stamp) Compare(path string, found Stamp) error {
	//guard:object-etag-compared
	if found.ETag != s.ETag || found.Size != s.Size {
		return fmt.Errorf("%s: %w: it was %s, it is %s", path, ErrReplaced, s, found)
	}
	return nil
}

func (s Stamp) check(path string, info fs.FileInfo) error {
	//guard:file-stamp-compared
	if found := (Stamp{Size: info.Size(), ModTime: info.ModTime().UnixNano(), ETag: s.ETag}); found != s || !info.Mode().IsRegular() {
		return fmt.Errorf("%s: %w: it was %s, it is %s", path, ErrReplaced, s, found)
	}
	return nil
}

func (s Stamp) String() string {
	if s.ETag != "" {
		return fmt.Sprintf("%d bytes of version %s", s.Size, s.ETag)
	}
	return fmt.Sprintf("%d bytes of %s", s.Size, time.Unix(0, s.ModTime).UTC().Format(time.RFC3339Nano))
}
