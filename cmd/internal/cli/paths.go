package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"trainmaster/pserver/checkpoint/storage"
)

// IsWrongKind reports whether err means that a path has a file where a directory is expected, or the other way round.
func IsWrongKind(err error) bool {
	return errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.EISDIR)
}

// kindOf names the kind of a file.
func kindOf(mode fs.FileMode) string {
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
func CheckFile(path string) error { return checkKind(path, "a regular file", fs.FileMode.IsRegular) }

// CheckNew reports why no file may be written at path: there is one already, unless replace is set, or something else. The text
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
		return fmt.Errorf("expected the name of a file, found %s, which --force does not replace", kindOf(found.Mode()))
	case !replace:
		return fmt.Errorf("expected a new name, found %s: name another one, or give --force to replace it", kindOf(found.Mode()))
	}
	return nil
}

// CheckFolder reports why path is no directory. The text has no path in front.
func CheckFolder(path string) error { return checkKind(path, "a directory", fs.FileMode.IsDir) }

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

// CheckPaths reports a flag that names a file where a directory is expected, or the other way round. The usage text of a flag says
// the kind: `directory`, `file`, or a PEM `file`, which must exist.
func CheckPaths(cmd *cobra.Command) error {
	var first error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		path := f.Value.String()
		if first != nil || !f.Changed || path == "" || storage.IsURL(path) || slices.Contains(notSettings, f.Name) {
			return
		}
		var err error
		switch kind, usage := pflag.UnquoteUsage(f); {
		case kind == "directory" && exists(path):
			err = CheckFolder(path)
		case kind == "file" && strings.HasPrefix(usage, "PEM "):
			err = checkKind(path, "a PEM file", fs.FileMode.IsRegular)
		case kind == "file" && CheckFolder(path) == nil:
			err = errors.New("expected a file, found a directory")
		}
		if err != nil {
			first = SettingErrorf(cmd, f.Name, "%w", err)
		}
	})
	return first
}

// exists reports whether there is anything at path, also a link to nothing. If path cannot be read, the caller finds the error later.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// OneLineName is a file name as a table shows it: quoted if it has characters that would break the line.
func OneLineName(name string) string {
	if quoted := strconv.Quote(name); strings.ContainsFunc(name, unicode.IsControl) {
		return quoted
	}
	return name
}

// IsHostPort reports whether addr is a host and a port.
func IsHostPort(addr string) bool {
	_, port, err := net.SplitHostPort(addr)
	return err == nil && port != ""
}
