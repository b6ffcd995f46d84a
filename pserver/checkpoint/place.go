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

	// List names what lies right below dir, in any order; nothing if there is no such dir.
	List(ctx context.Context, dir string) ([]string, error)
	// Open reads a file. ctx must outlast the reading.
	Open(ctx context.Context, name string) (Object, error)

	// Prepare makes dir, and those above it, where they have to be made.
	Prepare(dir string) error
	// Claim makes dir for this process alone: [fs.ErrExist] if it was made before.
	Claim(ctx context.Context, dir string) error
	// Create begins a file of about size bytes. ctx must outlast the writing.
	Create(ctx context.Context, name string, size int64, kind Kind) (Pending, error)
	// Sync returns when the names in dir outlast a crash of the machine.
	Sync(dir string) error

	// Remove removes a file. An absent file is no error.
	Remove(ctx context.Context, name string) error
	// RemoveAll removes a directory with its files and unfinished uploads.
	RemoveAll(ctx context.Context, dir string) error
}

// Kind selects how [Pending.Publish] treats an existing file of the same name.
type Kind int

const (
	// Replaced by the new one, whose name only its own process knows, or whose writer means to.
	Replaced Kind = iota
	// Final files are never replaced in a bucket: Publish returns [fs.ErrExist] if other bytes have the name. On a
	// disk they are, since not every file system can tell.
	Final
)

// Object is a file that is read; best from its beginning to its end.
type Object interface {
	io.ReaderAt
	io.Closer
	Size() int64
}

// Pending is a file that has no name yet.
type Pending interface {
	io.Writer
	// Publish gives the complete file its name. Before that the file does not exist.
	Publish() error
	// Close drops a file that was not published.
	Close() error
}
