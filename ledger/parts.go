package ledger

import (
	"context"
	"fmt"
	"io/fs"
	"strings"
)

// Store is what reading the ledger needs of etcd. Keys are below the job's prefix.
type Store interface {
	// LedgerEntries returns what stands of the ledger from commit first to last, at most limit
	// entries in their order, and the value of HeadKey with its revision, all of one revision.
	LedgerEntries(ctx context.Context, first, last uint64, limit int) (entries []Entry, head []byte, headRevision int64, err error)
	// Value returns the value of a key; nil, 0 when it is absent.
	Value(ctx context.Context, key string) (value []byte, revision int64, err error)
	// Keys returns the keys that begin with prefix.
	Keys(ctx context.Context, prefix string) ([]string, error)
}

// Lock is what sealing needs of the leader's lock: writes that change nothing once it is lost.
type Lock interface {
	// PutFenced writes a key.
	PutFenced(ctx context.Context, key string, value []byte) error
	// ReplaceFenced writes a key that was not written since expectRevision (0: it is absent), and returns its new revision.
	ReplaceFenced(ctx context.Context, key string, expectRevision int64, value []byte) (revision int64, err error)
	// DeleteFenced deletes keys.
	DeleteFenced(ctx context.Context, keys ...string) error
	// DeleteLedgerEntries deletes what stands of the ledger from commit first to last.
	DeleteLedgerEntries(ctx context.Context, first, last uint64) error
}

// parts is the archive of a job without a directory: a file is a value of etcd.
type parts struct {
	store Store
	lock  Lock // nil for reading
}

// Path is the key of a file.
func (parts) Path(name string) string { return PartsKeys + name }

// Read returns the first limit bytes of a file.
func (p parts) Read(ctx context.Context, name string, limit int64) ([]byte, error) {
	value, _, err := p.store.Value(ctx, p.Path(name))
	if err == nil && value == nil {
		err = fmt.Errorf("%s: %w", p.Path(name), fs.ErrNotExist)
	}
	return value[:min(int64(len(value)), limit)], err
}

// Write writes a file.
func (p parts) Write(ctx context.Context, name string, file []byte) error {
	return p.lock.PutFenced(ctx, p.Path(name), file)
}

// Remove removes files.
func (p parts) Remove(ctx context.Context, names []string) error {
	for _, name := range names {
		if err := p.lock.DeleteFenced(ctx, p.Path(name)); err != nil {
			return err
		}
	}
	return nil
}

// List returns the names of all files.
func (p parts) List(ctx context.Context) ([]string, error) {
	keys, err := p.store.Keys(ctx, PartsKeys)
	for i, key := range keys {
		keys[i] = strings.TrimPrefix(key, PartsKeys)
	}
	return keys, err
}
