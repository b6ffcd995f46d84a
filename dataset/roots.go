package dataset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"trainmaster/internal/objectstore"
	"trainmaster/recordio"
)

// Roots are the directories of permitted files and the prefixes of permitted objects. Without any, every file is permitted and no URL.
type Roots struct {
	named    []string // directories, absolute and cleaned
	resolved []string // the same without symlinks
	urls     []objectstore.Location
	limited  bool     // there are roots
	anyURL   bool     // all URLs are permitted
	dirs     sync.Map // path of a directory -> its resolved path
	stores   *Stores
}

// NewRoots resolves the directories. Resolved directories of files are remembered, so a process uses new Roots for each request.
func NewRoots(dirs []string) (*Roots, error) {
	r := &Roots{limited: len(dirs) > 0, stores: DefaultStores}
	for _, dir := range dirs {
		if IsURL(dir) {
			root, err := location(dir)
			if err == nil && root.Pattern != "" {
				err = errors.New("expected a URL without a pattern")
			}
			//guard:parameters-of-a-root
			if err == nil && strings.HasPrefix(root.Store, "s3:") { // the parameters of other stores are checked with their credentials
				// Other errors, as of a missing region, are of the environment, which may change before a read.
				if _, bad := r.stores.bucket(root); bad != nil && strings.Contains(bad.Error(), "query parameter") {
					err = fmt.Errorf("%w: %w", ErrScheme, bad)
				}
			}
			if err != nil {
				return nil, fmt.Errorf("--data-roots %q: %w", dir, err)
			}
			r.urls = append(r.urls, root)
			continue
		}
		named, err := filepath.Abs(dir)
		if err != nil {
			return nil, fmt.Errorf("--data-roots %q: %w", dir, err)
		}
		resolved, err := filepath.EvalSymlinks(named)
		if err != nil {
			return nil, fmt.Errorf("--data-roots %q: %w", dir, err)
		}
		if info, err := os.Stat(resolved); err == nil && !info.IsDir() {
			return nil, fmt.Errorf("--data-roots %q: expected a directory, found a file: name the directory of the file", dir)
		}
		r.named, r.resolved = append(r.named, named), append(r.resolved, resolved)
	}
	return r, nil
}

// Stat returns the stamp of the file at an absolute path, or of an object, if it is a regular file that is not empty and is inside the
// roots. It opens no file. It asks the store for an object.
func (r *Roots) Stat(ctx context.Context, stores *Stores, path string) (Stamp, error) {
	if IsURL(path) {
		return r.statURL(ctx, stores, path)
	}
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
	if !r.limited || within(path, r.named) || within(path, r.resolved) {
		return nil
	}
	return r.outside(path)
}

// checkFolder resolves the symlinks of a directory before it is read.
func (r *Roots) checkFolder(path string) error {
	if !r.limited {
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
	if !r.limited {
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

// checkURL refuses a URL by its name alone.
func (r *Roots) checkURL(name string) (objectstore.Location, error) {
	l, err := location(name)
	if err != nil {
		return l, err
	}
	//guard:url-within-roots
	if !r.anyURL && !slices.ContainsFunc(r.urls, l.Within) {
		if len(r.urls) == 0 {
			return l, fmt.Errorf("%s: %w: --data-roots has no URL: add %s to it", name, ErrOutsideRoots, l.Store)
		}
		return l, fmt.Errorf("%s: %w: expected a URL below one of %q, with the same parameters: add the URL of its bucket to --data-roots", name, ErrOutsideRoots, r.urls)
	}
	return l, nil
}

// expandURL returns the URLs of the objects of a URL, a prefix or a pattern.
func (r *Roots) expandURL(ctx context.Context, name string) ([]string, error) {
	l, err := r.checkURL(name)
	if err != nil {
		return nil, err
	}
	paths, err := r.stores.list(ctx, l)
	if err == nil && len(paths) == 0 {
		err = fmt.Errorf("%s: %w", name, ErrNoMatch)
	}
	return paths, err
}

// statURL returns the stamp of an object.
func (r *Roots) statURL(ctx context.Context, stores *Stores, path string) (Stamp, error) {
	if _, err := r.checkURL(path); err != nil {
		return Stamp{}, err
	}
	o, err := cmp.Or(stores, DefaultStores).Open(ctx, path, Stamp{}, 0)
	if err != nil {
		return Stamp{}, err
	}
	if o.Size() == 0 {
		err = &recordio.Error{File: path, Err: recordio.ErrEmpty}
	}
	return o.Stamp(), errors.Join(err, o.Close())
}
