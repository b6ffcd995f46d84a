package etcdstore

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// A process that only checks whether a data directory is in use does not prevent a start. A process that uses it
// does.
func TestDirectoryLockWaitsForChecks(t *testing.T) {
	dir := t.TempDir()
	for name, tt := range map[string]struct {
		held time.Duration
		want error
	}{
		"a check": {lockPatience / 2, nil},
		"in use":  {2 * lockPatience, ErrInUse},
	} {
		synctest.Test(t, func(t *testing.T) {
			other, err := os.OpenFile(filepath.Join(dir, embeddedLock), os.O_RDWR|os.O_CREATE, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			if err := syscall.Flock(int(other.Fd()), syscall.LOCK_SH); err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(tt.held, func() { other.Close() })
			lock, err := lockDir(t.Context(), dir)
			if !errors.Is(err, tt.want) {
				t.Errorf("%s: found %v, expected %v", name, err, tt.want)
			}
			if err == nil {
				lock.Close()
			}
			time.Sleep(2 * lockPatience) // virtual time: until the other file is closed
		})
	}
}
