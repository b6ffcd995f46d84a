package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// ErrUnavailable: the place did not answer, or refused. It says nothing about what lies there, so that whoever hears it
// must neither pass over a checkpoint nor remove one.
var ErrUnavailable = errors.New("the place for checkpoints cannot be used")

// Place is where the files of checkpoints lie: a folder ([Disk]), or a bucket of an object store. Names are relative to it, with
// slashes. What is not there is [fs.ErrNotExist].
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

	// Remove removes a file, if it is there.
	Remove(ctx context.Context, name string) error
	// RemoveAll removes a dir with all that lies below it, and what was left half-written there.
	RemoveAll(ctx context.Context, dir string) error
}

// Kind says what becomes of a file that has the name by the time of [Pending.Publish].
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
	// Publish gives the file its name: it is there whole, and not before.
	Publish() error
	// Close drops a file that was not published.
	Close() error
}
