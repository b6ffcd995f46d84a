package dataset

import (
	"fmt"
	"path/filepath"
	"sync"
)

// Roots are the directories of permitted files. Without directories every file is permitted.
type Roots struct {
	named    []string // absolute and cleaned
	resolved []string // the same without symlinks
	dirs     sync.Map // path of a directory -> its resolved path
}

// NewRoots resolves the directories. Resolved directories of files are remembered, so a process uses new Roots for each request.
func NewRoots(dirs []string) (*Roots, error) {
	r := new(Roots)
	for _, dir := range dirs {
		named, err := filepath.Abs(dir)
		if err != nil {
			return nil, fmt.Errorf("allowed directory %q: %w", dir, err)
		}
		resolved, err := filepath.EvalSymlinks(named)
		if err != nil {
			return nil, fmt.Errorf("allowed directory %q: %w", dir, err)
		}
		r.named, r.resolved = append(r.named, named), append(r.resolved, resolved)
	}
	return r, nil
}

// Stat returns the stamp of the file at an absolute path if it is a regular file that is not empty and is inside the roots. It opens no file.
func (r *Roots) Stat(path string) (Stamp, error) {
	path, err := r.checkSyntax(path)
	if err != nil {
		return Stamp{}, err
	}
	info, err := r.stat(path)
	if err != nil {
		return Stamp{}, err
	}
	return Stamp{Size: info.Size(), ModTime: info.ModTime().UnixNano()}, nil
}

// checkName refuses a cleaned absolute path by its name alone, so that the answer does not reveal files elsewhere.
func (r *Roots) checkName(path string) error {
	if len(r.named) == 0 || within(path, r.named) || within(path, r.resolved) {
		return nil
	}
	return r.outside(path)
}

// checkFolder resolves the symlinks of a directory before it is read.
func (r *Roots) checkFolder(path string) error {
	if len(r.named) == 0 {
		return nil
	}
	resolved, err := r.resolveFolder(path)
	if err != nil {
		return err
	}
	if !within(resolved, r.resolved) {
		return r.outside(path)
	}
	return nil
}

// checkFile resolves the symlinks of a file before it is opened. Folders are resolved once for all their files.
func (r *Roots) checkFile(path string, isLink bool) error {
	if len(r.named) == 0 {
		return nil
	}
	if !isLink {
		return r.checkFolder(filepath.Dir(path))
	}
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	//guard:links-resolved
	if !within(resolved, r.resolved) {
		return r.outside(path)
	}
	return nil
}

func (r *Roots) resolveFolder(path string) (string, error) {
	if known, ok := r.dirs.Load(path); ok {
		return known.(string), nil
	}
	resolved, err := filepath.EvalSymlinks(path)
	if err == nil {
		r.dirs.Store(path, resolved)
	}
	return resolved, err
}

func (r *Roots) outside(path string) error {
	return fmt.Errorf("%s: %w %q", path, ErrOutsideRoots, r.named)
}

func within(path string, folders []string) bool {
	for _, folder := range folders {
		//guard:path-within-root
		if rel, err := filepath.Rel(folder, path); err == nil && filepath.IsLocal(rel) {
			return true
		}
	}
	return false
}
