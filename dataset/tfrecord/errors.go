package tfrecord

import (
	"fmt"

	"trainmaster/recordio"
)

// Error says where in which file something is wrong.
type Error struct {
	File         string
	Record       int64 // number in the file, from 0, or negative if it is not known
	Offset       int64 // of its first byte; negative: Err is about the file as a whole
	Decompressed bool  // Offset counts bytes of the decompressed data
	Err          error
}

func (e *Error) Error() string {
	name := ""
	if e.File != "" {
		name = recordio.DisplayName(e.File) + ": "
	}
	if e.Offset < 0 {
		return fmt.Sprintf("%s%v", name, e.Err)
	}
	if e.Record >= 0 {
		name += fmt.Sprintf("record %d, ", e.Record)
	}
	of := ""
	if e.Decompressed {
		of = " of the decompressed data"
	}
	return fmt.Sprintf("%sbyte %d%s: %v", name, e.Offset, of, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// The actions in error texts.
const (
	restoreFile = "restore the file from its source"
	copyAgain   = "copy the file again, or write it again if its writer was stopped"
)

// badChecksum says which checksum is wrong.
func badChecksum(of string, computed, stored uint32, action string) error {
	return fmt.Errorf("%w of the %s: expected %#08x, found %#08x: %s", recordio.ErrBadChecksum, of, computed, stored, action)
}

// truncated says what of a record is missing.
func truncated(want uint64, part string, got int64) error {
	return fmt.Errorf("%w: expected %d bytes (%s), found %d: %s", recordio.ErrTruncated, want, part, got, copyAgain)
}
