package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"trainmaster/taskqueue"
)

// The keys of the ledger, below the job's prefix. The events of commits are under taskqueue.LedgerKey.
const (
	HeadKey   = taskqueue.SealedKey
	PartsKeys = HeadKey + "/" // plus the name of a file: the sealed files in etcd
	// BeginKey has the [Begin], as JSON, of a job whose earlier ledger was lost or replaced.
	BeginKey = taskqueue.LedgerPrefix + "begin"
)

// Begin is the beginning of a ledger that does not begin with the first commit of its job.
type Begin struct {
	taskqueue.Outline
	// Replaced has the hexadecimal ids of replaced jobs. Their directory is renamed when the ledger is first sealed.
	Replaced []string `json:"replaced,omitempty"`
}

// ErrElsewhere means that the sealed part of the ledger is not in the configured place. The process
// must not lead the job and cannot read its ledger.
var ErrElsewhere = errors.New("the job's ledger is sealed elsewhere")

// Head is the sealing progress of the ledger. The zero Head is the head of a ledger that is not sealed.
type Head struct {
	Format    int    `json:"format"`
	ID        string `json:"id"`      // hexadecimal id of the job, as in the directory
	Directory string `json:"folder"`  // directory of the job at the master; "": the files are in etcd
	From      uint64 `json:"from"`    // first kept commit
	Through   uint64 `json:"through"` // the last sealed commit
	Files     int    `json:"files"`   // number of kept files
	Bytes     int64  `json:"bytes"`   // size of the kept files
	File      string `json:"file"`    // the newest
	Digest    string `json:"digest"`  // SHA-256 of it
}

const headFormat = 1

func (h Head) encode() ([]byte, error) {
	h.Format = headFormat
	return json.Marshal(h)
}

func parseHead(value []byte) (Head, error) {
	if value == nil {
		return Head{From: 1}, nil
	}
	var h Head
	if err := json.Unmarshal(value, &h); err != nil {
		return h, fmt.Errorf("%w: %s: expected JSON, found %.80q: %w", ErrDamaged, HeadKey, value, err)
	}
	if h.Format != headFormat {
		return h, fmt.Errorf("%w: %s: expected format %d, found %d: a newer program wrote it", ErrDamaged, HeadKey, headFormat, h.Format)
	}
	if h.From == 0 || h.Through < h.From || h.File == "" {
		return h, fmt.Errorf("%w: %s: found %s", ErrDamaged, HeadKey, value)
	}
	return h, nil
}

// readHead reads the sealing progress, and the outline from which the ledger continues. The first file has the outline once
// there is a file.
func readHead(ctx context.Context, store Store) (h Head, revision int64, begin Begin, err error) {
	value, revision, err := store.Value(ctx, HeadKey)
	if err != nil {
		return h, 0, begin, fmt.Errorf("read the head of the ledger: %w", err)
	}
	if h, err = parseHead(value); err != nil || h.sealed() {
		return h, revision, begin, err
	}
	if value, _, err = store.Value(ctx, BeginKey); err != nil || value == nil {
		return h, revision, begin, err
	}
	if err := json.Unmarshal(value, &begin); err != nil {
		return h, 0, begin, fmt.Errorf("%w: %s: expected an outline as JSON, found %.80q: %w", ErrDamaged, BeginKey, value, err)
	}
	h.From = begin.Commit + 1
	return h, revision, begin, nil
}

// through is the last commit that needs not be sealed any more.
func (h Head) through() uint64 { return max(h.Through, h.From-1) }

// sealed reports whether anything is.
func (h Head) sealed() bool { return h.Through > 0 }

const suffix = ".sealed"

// fileName is the name of a sealed file. It has the digest in it, so that two leaders never
// write different bytes under one name.
func fileName(first, last uint64, digest string) string {
	return fmt.Sprintf("%016x-%016x-%.16s%s", first, last, digest, suffix)
}

// firstOf is the first commit that a file covers, or was to cover if it is a temporary one; 0
// for a temporary file of the id.
func firstOf(name string) (first uint64, ok bool) {
	if strings.HasPrefix(name, idFile+".") && strings.HasSuffix(name, temporary) {
		return 0, true
	}
	if !strings.Contains(name, suffix) {
		return 0, false
	}
	n, err := fmt.Sscanf(name, "%016x-", &first)
	return first, err == nil && n == 1
}
