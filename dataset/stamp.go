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
}

// Check is nil while the file at path is unchanged since s was taken, by size and modification time. Otherwise it wraps
// ErrReplaced and names the difference.
func Check(path string, s Stamp) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrReplaced, err)
	}
	return s.check(path, info)
}

func (s Stamp) check(path string, info fs.FileInfo) error {
	//guard:file-stamp-compared
	if found := (Stamp{Size: info.Size(), ModTime: info.ModTime().UnixNano()}); found != s || !info.Mode().IsRegular() {
		return fmt.Errorf("%s: %w: it was %s, it is %s", path, ErrReplaced, s, found)
	}
	return nil
}

func (s Stamp) String() string {
	return fmt.Sprintf("%d bytes of %s", s.Size, time.Unix(0, s.ModTime).UTC().Format(time.RFC3339Nano))
}
