package checkpoint

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A file on a disk does not watch contexts. The write fails in the slice during which its context ends.
func TestFileEndsWithItsContext(t *testing.T) {
	why := errors.New("its master is gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	f, err := createFile(ctx, Disk(t.TempDir()), "", "file", 10*slice, Replaced)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	slices := 0
	f.worked = func(bytes int, _ time.Duration) {
		if slices++; slices == 2 {
			cancel(why)
		}
		if bytes != slice {
			t.Errorf("a slice of %d bytes, expected %d", bytes, slice)
		}
	}
	if n, err := f.Write(make([]byte, 10*slice)); !errors.Is(err, why) || n != 2*slice {
		t.Errorf("wrote %d bytes, %v; expected two slices", n, err)
	}
	if n, err := f.Write([]byte{1}); !errors.Is(err, why) || n != 0 {
		t.Errorf("wrote %d bytes afterwards, %v", n, err)
	}
}
