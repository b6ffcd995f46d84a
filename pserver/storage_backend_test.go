package pserver_test

import (
	"fmt"
	"sync"
	"testing"

	"trainmaster/pserver/checkpoint/storage/s3test"
)

// ground is where the servers of a test keep checkpoints: folders, or a bucket of a real S3 server.
type storageBackend struct {
	bucket *s3test.Server // nil: folders
	mu     sync.Mutex
	dirs   int
}

// onEachBackend runs a test on folders and in a bucket.
func onEachBackend(t *testing.T, test func(t *testing.T, g *storageBackend)) {
	t.Run("folder", func(t *testing.T) { test(t, &storageBackend{}) })
	t.Run("bucket", func(t *testing.T) { test(t, &storageBackend{bucket: s3test.Start(t)}) })
}

// place is a new one for --checkpoint-dir, and the folder in which each file or object of it is a file.
func (g *storageBackend) newDir(t testing.TB) (where, files string) {
	t.Helper()
	if g.bucket == nil {
		dir := t.TempDir()
		return dir, dir
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dirs++
	prefix := fmt.Sprintf("jobs/%d", g.dirs)
	return g.bucket.URL(prefix), g.bucket.Path(prefix)
}
