package recordio

import (
	"errors"
	"fmt"
)

// Errors of a file. Every error of a reader is an *[Error] that wraps one of these or the error of the underlying reader.
// ErrChanged comes together with the error for the difference, where there is one.
var (
	ErrEmpty         = errors.New("no chunks: the file is empty")
	ErrTruncated     = errors.New("truncated")
	ErrBadMagic      = errors.New("bad magic number")
	ErrBadChecksum   = errors.New("bad checksum")
	ErrBadCompressor = errors.New("unknown compressor")
	ErrMalformed     = errors.New("malformed chunk") // the checksum holds, but the content contradicts the header
	ErrTooLarge      = errors.New("too large")
	ErrNotRegular    = errors.New("not a regular file")

	// ErrChanged is about a chunk that is no longer what the index says.
	ErrChanged = errors.New("the file was changed since it was indexed")

	// ErrClosed is about a Writer that is used after Close.
	ErrClosed = errors.New("writer is closed")
)

// Error says where in which file something is wrong.
type Error struct {
	File   string
	Offset int64 // of the header of the chunk at fault, in bytes; negative: the file as a whole
	Err    error
}

func (e *Error) Error() string {
	if e.Offset < 0 {
		return fmt.Sprintf("%s: %v", DisplayName(e.File), e.Err)
	}
	return fmt.Sprintf("%s: byte %d: %v", DisplayName(e.File), e.Offset, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }
