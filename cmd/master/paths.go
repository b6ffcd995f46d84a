package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// isWrongKind reports whether err means that a path has a file where a folder is expected, or the other way round.
func isWrongKind(err error) bool {
	return errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.EISDIR)
}

// kindOf names the kind of a file.
func kindOf(mode fs.FileMode) string {
	switch {
	case mode.IsRegular():
		return "a file"
	case mode.IsDir():
		return "a folder"
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

// checkFile reports why path is no regular file. The text has no path in front.
func checkFile(path string) error { return checkKind(path, "a regular file", fs.FileMode.IsRegular) }

// checkNew reports why no file may be written at path: there is one already, unless replace is set, or something else. The text
// has no path in front.
func checkNew(path string, replace bool) error {
	found, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case found.IsDir():
		return errors.New("expected the name of a file, found a folder")
	case !replace:
		return fmt.Errorf("expected a new name, found %s: name another one, or give --force to replace it", kindOf(found.Mode()))
	}
	return nil
}

// checkFolder reports why path is no folder. The text has no path in front.
func checkFolder(path string) error { return checkKind(path, "a folder", fs.FileMode.IsDir) }

func checkKind(path, expected string, is func(fs.FileMode) bool) error {
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
		return fmt.Errorf("expected %s, found %s", expected, kindOf(found.Mode()))
	}
	return nil
}
