package dataset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"trainmaster/recordio"
)

// Source lists files of the local file system and of object stores.
type Source struct {
	// Roots are the directories that must contain all files once symlinks are resolved, and the URLs of prefixes that must contain all
	// objects. Empty means any directory and, if AnyURL is set, any URL.
	Roots []string
	// AnyURL permits all URLs if there are no Roots. The names must be of an operator: a URL selects the address that this process connects
	// to.
	AnyURL bool
	// Stores opens URLs; nil means DefaultStores.
	Stores *Stores
	// Parallel is how many files are looked at together; zero means four for each processor.
	Parallel int
	// Progress, if set, is called with the number of files looked at; by one goroutine at a time.
	Progress func(done, total int)
}

// List expands names, each a path or a glob in the syntax of filepath.Match, and checks every file. Relative names
// are relative to the working directory of the process. A name of an existing file is not expanded as a glob. A [Range] is a name too.
func (s Source) List(ctx context.Context, names []string) (Listing, error) {
	if len(names) == 0 {
		return Listing{}, ErrNoNames
	}
	if r, found, err := rangeOf(names); found {
		return r.listing(), err
	}
	roots, err := s.roots()
	if err != nil {
		return Listing{}, err
	}
	paths, err := roots.expandAll(ctx, names)
	if err != nil {
		return Listing{}, err
	}
	listing := Listing{Files: make([]File, len(paths))}
	parallel := s.Parallel
	if slices.ContainsFunc(paths, IsURL) {
		parallel = cmp.Or(parallel, parallelObjects)
	}
	errs, err := forEach(ctx, len(paths), parallel, s.Progress, func(i int) (err error) {
		listing.Files[i], err = roots.look(ctx, paths[i])
		return err
	})
	if err == nil {
		err = joinFiles(errs, func(i int) string { return paths[i] })
	}
	if err != nil {
		return Listing{}, err
	}
	listing.Digest = Digest(listing.Files)
	return listing, nil
}

func (s Source) roots() (*Roots, error) {
	roots, err := NewRoots(s.Roots)
	if err == nil {
		roots.stores, roots.anyURL = cmp.Or(s.Stores, DefaultStores), s.AnyURL && len(s.Roots) == 0
	}
	return roots, err
}

// Paths returns the absolute paths of the files that names stand for, sorted, each of them
// once. It opens no file, and reads directories only for globs.
func (s Source) Paths(ctx context.Context, names []string) ([]string, error) {
	if len(names) == 0 {
		return nil, ErrNoNames
	}
	if r, found, err := rangeOf(names); found {
		return []string{r.String()}, err
	}
	roots, err := s.roots()
	if err != nil {
		return nil, err
	}
	return roots.expandAll(ctx, names)
}

// expandAll returns absolute paths, sorted, each of them once.
func (r *Roots) expandAll(ctx context.Context, names []string) ([]string, error) {
	var paths []string
	errs := make([]error, len(names))
	for i, name := range names {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		var found []string
		found, errs[i] = r.expandName(ctx, name)
		//guard:file-names-are-text
		if at := slices.IndexFunc(found, func(path string) bool { return !utf8.ValidString(path) }); at >= 0 {
			errs[i] = fmt.Errorf("%q: %w: expected UTF-8, found other bytes: rename the file", found[at], ErrBadName)
		}
		paths = append(paths, found...)
	}
	//guard:files-sorted
	slices.Sort(paths)
	return slices.Compact(paths), joinFiles(errs, func(i int) string { return names[i] })
}

func (r *Roots) expandName(ctx context.Context, name string) ([]string, error) {
	if IsURL(name) {
		return r.expandURL(ctx, name)
	}
	path, err := r.checkSyntax(name)
	if err != nil {
		return nil, err
	}
	if !hasMeta(path) {
		return []string{path}, nil
	}
	if _, err := os.Lstat(path); err == nil {
		return []string{path}, nil
	}
	return r.glob(path)
}

// checkSyntax returns the absolute path of a name that is a path inside the roots.
func (r *Roots) checkSyntax(name string) (string, error) {
	if name == "" || strings.ContainsRune(name, 0) {
		return "", fmt.Errorf("%q: %w: expected a path", name, ErrBadName)
	}
	path, err := filepath.Abs(name)
	if err != nil {
		return "", err
	}
	return path, r.checkName(path)
}

// stat checks one file before it is opened: opening a device may do something.
func (r *Roots) stat(path string) (fs.FileInfo, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, recordio.OpenError(path, err)
	}
	isLink := info.Mode()&fs.ModeSymlink != 0
	if err := r.checkFile(path, isLink); err != nil {
		return nil, err
	}
	if isLink {
		if info, err = os.Stat(path); err != nil {
			return nil, recordio.OpenError(path, err)
		}
	}
	return info, usable(path, info)
}

// look checks one file and reads its header.
func (r *Roots) look(ctx context.Context, path string) (File, error) {
	if IsURL(path) {
		return r.stores.look(ctx, path)
	}
	if _, err := r.stat(path); err != nil {
		return File{}, err
	}
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // it may have become a FIFO
	if err != nil {
		return File{}, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return File{}, err
	}
	if err := usable(path, info); err != nil {
		return File{}, err
	}
	f := File{Path: path, Size: info.Size(), ModTime: info.ModTime()}
	if _, err := file.ReadAt(f.Header[:], 0); err != nil && !errors.Is(err, io.EOF) {
		return File{}, err
	}
	return f, nil
}

// usable says why a file cannot be part of a dataset.
func usable(path string, info fs.FileInfo) error {
	//guard:regular-files-only
	if err := recordio.CheckRegular(path, info.Mode()); err != nil {
		return err
	}
	if info.Size() == 0 {
		return &recordio.Error{File: path, Err: recordio.ErrEmpty}
	}
	return nil
}
