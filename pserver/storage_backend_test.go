package pserver_test

import (
	"fmt"
	"sync"
	"testing"

	"trainmaster/internal/objectstore/s3test"
)

// storageBackend is the storage for checkpoints in a test: directories, or a bucket of a real S3 server.
type storageBackend struct {
	bucket *s3test.Server // nil: directories
	mu     sync.Mutex
	dirs   int
}

// onEachBackend runs a test in directories and in a bucket.
func onEachBackend(t *testing.T, test func(t *testing.T, g *storageBackend)) {
	t.Run("folder", func(t *testing.T) { test(t, &storageBackend{}) })
	t.Run("bucket", func(t *testing.T) { test(t, &storageBackend{bucket: s3test.Start(t)}) })
}

// newDir returns a new value for --checkpoint-dir, and the directory with its files or objects.
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
