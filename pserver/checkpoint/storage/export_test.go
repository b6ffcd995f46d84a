package storage

import (
	"testing"
	"time"
)

// SetStallLimit is for one test.
func SetStallLimit(t testing.TB, limit time.Duration) {
	before := stallLimit
	stallLimit = limit
	t.Cleanup(func() { stallLimit = before })
}
