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

// OpenError adds to the error of a file that cannot be opened what is known about its path: a symbolic link without a target, or a file
// where a folder is expected. The result wraps err.
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
		for folder := filepath.Dir(path); folder != filepath.Dir(folder); folder = filepath.Dir(folder) {
			if info, statErr := os.Stat(folder); statErr == nil && !info.IsDir() {
				return fmt.Errorf("%s: expected %s to be a folder, found a file: %w", DisplayName(path), DisplayName(folder), err)
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
