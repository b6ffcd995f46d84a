package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// ErrUnavailable is returned when a place does not answer or refuses. The state of its files is then unknown: the caller must not
// skip a checkpoint or remove one.
var ErrUnavailable = errors.New("checkpoint storage unavailable")

// Place stores the files of checkpoints: a directory ([Disk]) or a bucket of an object store. Names are relative, with slashes.
// The error for an absent file is [fs.ErrNotExist].
type Place interface {
	fmt.Stringer // for messages
	io.Closer    // after it, nothing

	// List returns the names directly below dir, in any order, none if dir does not exist.
	List(ctx context.Context, dir string) ([]string, error)
	// Open opens a file. ctx must not end before the reading does.
	Open(ctx context.Context, name string) (Object, error)

	// Prepare creates dir and its parents where the place has directories.
	Prepare(dir string) error
	// Claim creates dir for this process only. It returns [fs.ErrExist] if dir exists.
	Claim(ctx context.Context, dir string) error
	// Create starts a file of about size bytes. ctx must not end before the writing does.
	Create(ctx context.Context, name string, size int64, kind Kind) (Pending, error)
	// Sync returns when the names in dir survive a crash of the machine.
	Sync(dir string) error

	// Remove removes a file. An absent file is no error.
	Remove(ctx context.Context, name string) error
	// RemoveAll removes a directory with its files and unfinished uploads.
	RemoveAll(ctx context.Context, dir string) error
}

// Kind selects how [Pending.Publish] treats an existing file of the same name.
type Kind int

const (
	// Replaced: the new file replaces the old one.
	Replaced Kind = iota
	// Final files are never replaced in a bucket: Publish returns [fs.ErrExist] if other bytes have the name. On a
	// disk they are, since not every file system can tell.
	Final
)

// Object is an open file. Sequential reads are fastest.
type Object interface {
	io.ReaderAt
	io.Closer
	Size() int64
}

// Pending is an unpublished file.
type Pending interface {
	io.Writer
	// Publish gives the complete file its name. Before that the file does not exist.
	Publish() error
	// Close drops a file that was not published.
	Close() error
}
