package recordio

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"unicode"
)

// OpenError explains an error of opening a file: it reports a symbolic link without a target, or a file in the place of a directory. The
// result wraps err.
func OpenError(path string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if info, linkErr := os.Lstat(path); linkErr != nil || info.Mode()&fs.ModeSymlink == 0 {
			return err
		}
		target, readErr := os.Readlink(path)
		if readErr != nil {
			return err
		}
		return fmt.Errorf("%s: expected a file, found a symbolic link to %s, which does not exist: %w", DisplayName(path), DisplayName(target), fs.ErrNotExist)
	case errors.Is(err, syscall.ENOTDIR):
		for dir := filepath.Dir(path); dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
			if info, statErr := os.Stat(dir); statErr == nil && !info.IsDir() {
				return fmt.Errorf("%s: expected %s to be a directory, found a file: %w", DisplayName(path), DisplayName(dir), err)
			}
		}
	}
	return err
}

// DisplayName is a path for messages and tables: quoted if it has a character that would break a line.
func DisplayName(path string) string {
	if strings.ContainsFunc(path, unicode.IsControl) {
		return strconv.Quote(path)
	}
	return path
}
