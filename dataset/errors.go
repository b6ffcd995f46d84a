package dataset

import (
	"errors"
	"fmt"
	"strings"

	"trainmaster/internal/objectstore"
)

// Errors of names and files, in addition to the errors of package recordio.
var (
	ErrNoNames      = errors.New("no files were named")
	ErrBadName      = errors.New("not a file name")
	ErrNoMatch      = errors.New("the glob matches no file")
	ErrOutsideRoots = errors.New("outside of --data-roots")
	ErrNoRecords    = errors.New("the chunks of the file hold no records")
	ErrScheme       = errors.New("not the URL of a supported object store")

	// ErrStore is the error of an object store that does not answer, or refuses.
	ErrStore = objectstore.ErrUnavailable

	// ErrReplaced is the error of a file that has changed since it was listed.
	ErrReplaced = errors.New("the file was replaced since it was listed")
)

// FilesError collects the errors of the files of a dataset.
type FilesError struct {
	Bad, Files int      // number of bad files, and of all files
	First      []error  // of the first bad ones in the order of the list, at most keptErrors
	BadNames   []string // of all bad ones
}

const keptErrors = 5

func (e *FilesError) Error() string {
	if e.Bad == 1 {
		return e.First[0].Error()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d files or names cannot be used: ", e.Bad, e.Files)
	for i, err := range e.First {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(err.Error())
	}
	if more := e.Bad - len(e.First); more > 0 {
		fmt.Fprintf(&b, "; and %d more", more)
	}
	return b.String()
}

// Unwrap makes errors.Is and errors.As look into the first ones.
func (e *FilesError) Unwrap() []error { return e.First }

// joinFiles returns the errors of names, at the same places; nil if all of them are nil.
func joinFiles(errs []error, name func(i int) string) error {
	e := FilesError{Files: len(errs)}
	for i, err := range errs {
		if err == nil {
			continue
		}
		e.Bad++
		e.BadNames = append(e.BadNames, name(i))
		if len(e.First) < keptErrors {
			e.First = append(e.First, err)
		}
	}
	if e.Bad == 0 {
		return nil
	}
	return &e
}
