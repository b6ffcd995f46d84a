// Package filekind implements checks of the kind of a file: regular file, directory, or something else. The errors name the kind that was
// found, for messages about the path of a flag or an argument.
package filekind

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// IsWrong reports whether err means that a path has a file where a directory is expected, or the other way round.
func IsWrong(err error) bool {
	return errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.EISDIR)
}

// nameOf names the kind of a file.
func nameOf(mode fs.FileMode) string {
	switch {
	case mode.IsRegular():
		return "a file"
	case mode.IsDir():
		return "a directory"
	case mode&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	case mode&fs.ModeDevice != 0:
		return "a device"
	case mode&fs.ModeSymlink != 0:
		return "a link"
	}
	return "a special file"
}

// CheckFile reports why path is no regular file. The text has no path in front.
func CheckFile(path string) error { return Check(path, "a regular file", fs.FileMode.IsRegular) }

// CheckNew reports why no file can be written at path: there is a file and replace is not set, or there is something else. The text
// has no path in front.
func CheckNew(path string, replace bool) error {
	found, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case found.IsDir():
		return errors.New("expected the name of a file, found a directory")
	case !found.Mode().IsRegular():
		return fmt.Errorf("expected the name of a file, found %s, which --force does not replace", nameOf(found.Mode()))
	case !replace:
		return fmt.Errorf("expected a new name, found %s: name another one, or give --force to replace it", nameOf(found.Mode()))
	}
	return nil
}

// CheckFolder reports why path is no directory. The text has no path in front.
func CheckFolder(path string) error { return Check(path, "a directory", fs.FileMode.IsDir) }

// Check reports why path does not exist or is not of the expected kind. The text has no path in front.
func Check(path, expected string, is func(fs.FileMode) bool) error {
	found, err := os.Stat(path)
	if err != nil {
		if target, linkErr := os.Readlink(path); linkErr == nil && errors.Is(err, fs.ErrNotExist) {
			if !filepath.IsAbs(target) {
				target = filepath.Join(filepath.Dir(path), target)
			}
			return fmt.Errorf("expected %s, found a link to %q, which does not exist: %w", expected, target, fs.ErrNotExist)
		}
		if pathError, ok := errors.AsType[*fs.PathError](err); ok {
			err = pathError.Err
		}
		return fmt.Errorf("expected %s: %w", expected, err)
	}
	if !is(found.Mode()) {
		return fmt.Errorf("expected %s, found %s", expected, nameOf(found.Mode()))
	}
	return nil
}
