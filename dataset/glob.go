package dataset

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// glob expands a cleaned absolute pattern in the syntax of filepath.Match, segment by segment. Unlike filepath.Glob, it
// returns an error for a directory that cannot be read: otherwise the dataset would silently be smaller. Like a shell, it
// matches hidden files only with a pattern that begins with a dot.
func (r *Roots) glob(pattern string) ([]string, error) {
	if _, err := filepath.Match(pattern, ""); err != nil {
		return nil, fmt.Errorf("%s: %w", pattern, err)
	}
	start := filepath.VolumeName(pattern) + string(filepath.Separator)
	segments := strings.Split(strings.TrimPrefix(pattern, start), string(filepath.Separator))
	matches, err := r.expand(nil, start, segments)
	if err == nil && len(matches) == 0 {
		err = fmt.Errorf("%s: %w", pattern, ErrNoMatch)
	}
	return matches, err
}

// expand appends to matches the paths in a directory that segments match.
func (r *Roots) expand(matches []string, folder string, segments []string) ([]string, error) {
	segment, rest := segments[0], segments[1:]
	if !hasMeta(segment) {
		path := filepath.Join(folder, segment)
		if len(rest) > 0 {
			return r.expand(matches, path, rest)
		}
		if _, err := os.Lstat(path); err == nil {
			matches = append(matches, path)
		}
		return matches, nil
	}
	if info, err := os.Stat(folder); err == nil && !info.IsDir() || os.IsNotExist(err) {
		return matches, nil
	}
	if err := r.checkFolder(folder); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		if matched, _ := filepath.Match(segment, entry.Name()); !matched || hidden(entry) && segment[0] != '.' {
			continue
		}
		path := filepath.Join(folder, entry.Name())
		if len(rest) == 0 {
			matches = append(matches, path)
		} else if matches, err = r.expand(matches, path, rest); err != nil {
			return nil, err
		}
	}
	return matches, nil
}

func hasMeta(s string) bool { return strings.ContainsAny(s, `*?[\`) }

func hidden(entry fs.DirEntry) bool { return strings.HasPrefix(entry.Name(), ".") }
