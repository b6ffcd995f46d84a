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

// A process that looks whether a folder is in use does not keep another from starting there; one that uses it does.
func TestLockOfFolderWaitsForThoseWhoLook(t *testing.T) {
	dir := t.TempDir()
	for name, tt := range map[string]struct {
		held time.Duration
		want error
	}{
		"a look": {lockPatience / 2, nil},
		"a user": {2 * lockPatience, ErrInUse},
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
			time.Sleep(2 * lockPatience) // virtual: until the other file is closed
		})
	}
}
