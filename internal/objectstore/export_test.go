package objectstore

import (
	"net/http"
	"testing"
	"time"
)

// SetGiveUp is for one test.
func SetGiveUp(t testing.TB, limit time.Duration) {
	before := giveUp
	giveUp = limit
	t.Cleanup(func() { giveUp = before })
}

// Settle waits for the requests of a File that have begun.
func Settle(f *File) {
	f.mu.Lock()
	begun := f.requests[:f.begun]
	f.mu.Unlock()
	for _, r := range begun {
		<-r.done
	}
}

// Entry is a range in a cache.
type Entry struct{ entry }

// CacheEntry is entry.
func CacheEntry(c *Cache, url string, off int64, n int) Entry {
	return Entry{c.entry(url, "", "1", off, n)}
}

func (e Entry) Write(p []byte)     { e.write(p) }
func (e Entry) Read(p []byte) bool { return e.read(p) }

// Do returns the method of a client, and a function that closes its connections.
func Do(stallLimit time.Duration) (do func(*http.Request) (*http.Response, error), end func()) {
	c := newClient(stallLimit)
	return c.Do, c.CloseIdleConnections
}
