package cli

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"trainmaster/internal/filekind"
	"trainmaster/pserver/checkpoint/storage"
)

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
			err = filekind.CheckFolder(path)
		case kind == "file" && strings.HasPrefix(usage, "PEM "):
			err = filekind.Check(path, "a PEM file", fs.FileMode.IsRegular)
		case kind == "file" && filekind.CheckFolder(path) == nil:
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
	if err != nil || port == "" {
		return false
	}
	_, err = net.LookupPort("tcp", port) // a number up to 65535, or the name of a service
	return err == nil
}
