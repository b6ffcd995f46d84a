// Package usage implements errors that are caused by the input of a command: a flag, an argument, or a file that one of them names.
//
// A library returns such an error if it refuses its input. The command then ends with exit code 2, and its user corrects the input.
package usage

import (
	"errors"
	"fmt"
)

// Error is an error that is caused by the input of a command.
type Error struct{ err error }

// Errorf formats an error as [fmt.Errorf].
func Errorf(format string, args ...any) error { return &Error{fmt.Errorf(format, args...)} }

// Is reports whether err is, or wraps, an error that the input of a command causes.
func Is(err error) bool {
	_, ok := errors.AsType[*Error](err)
	return ok
}

func (e *Error) Error() string { return e.err.Error() }

// Unwrap returns the error that Errorf formatted.
func (e *Error) Unwrap() error { return e.err }
