package checkpoint

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
)

// Member is a file of a set, which is read with the context that it was opened with.
type Member struct {
	Path string // relative to the store, with slashes
	Size int64

	file Object
	data io.Reader // of file
	sum  hash.Hash
	want string // SHA-256, hexadecimal
}

// Members opens all files of a set: the files of the shards with their manifests and segments, then the state of the job and the set
// itself. In a directory they stay readable if the set is pruned during the call; in a bucket a removed file returns
// [fs.ErrNotExist]. Close must follow.
func (s Store) Members(ctx context.Context, set *Set) (list Members, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, list.Close())
		}
	}()
	for _, p := range set.Shards {
		shard := s.Shard(p.Shard)
		c, _, err := shard.begin(ctx, p.Generation)
		if err == nil && c.Digest != p.SHA256 {
			err = fmt.Errorf("%s has a SHA-256 that starts with %.12s, expected %.12s", ManifestFile, c.Digest, p.SHA256)
		}
		if err != nil {
			return list, fmt.Errorf("shard %d of %v: checkpoint %v: %w", p.Shard, set, p.Generation, err)
		}
		own := &Segment{p.String(), append(slices.Clone(c.Manifest.Files), Entry{ManifestFile, 0, p.SHA256})}
		for _, dir := range append([]*Segment{own}, c.Manifest.segments()...) {
			for _, e := range dir.Files {
				if list, err = s.member(ctx, list, path.Join(shard.name, dir.Name, e.Name), e.SHA256); err != nil {
					return list, err
				}
			}
		}
	}
	if set.State != nil {
		if list, err = s.member(ctx, list, path.Join(SetsDir, set.State.Name), set.State.SHA256); err != nil {
			return list, err
		}
	}
	text, err := s.ReadText(ctx, set.Number)
	if err != nil {
		return list, err
	}
	return s.member(ctx, list, path.Join(SetsDir, setName(set.Number)), digest(text))
}

func (s Store) member(ctx context.Context, list Members, name, want string) (Members, error) {
	if !filepath.IsLocal(name) {
		return list, fmt.Errorf("a manifest names %q: expected a file in the same directory", name)
	}
	f, err := s.Place.Open(ctx, name)
	if err != nil {
		return list, err
	}
	return append(list, &Member{Path: name, Size: f.Size(), file: f, data: io.NewSectionReader(f, 0, f.Size()), sum: sha256.New(), want: want}), nil
}

// Read reads the file. At its end the digest is compared.
func (m *Member) Read(p []byte) (int, error) {
	n, err := m.data.Read(p)
	m.sum.Write(p[:n])
	if errors.Is(err, io.EOF) {
		if got := hex.EncodeToString(m.sum.Sum(nil)); got != m.want {
			return n, fmt.Errorf("%s has a SHA-256 that starts with %.12s, expected %.12s", m.Path, got, m.want)
		}
	}
	return n, err
}

// Members are the files of a set.
type Members []*Member

// Bytes returns the total size.
func (l Members) Bytes() (n int64) {
	for _, m := range l {
		n += m.Size
	}
	return n
}

// Close closes the files.
func (l Members) Close() error {
	var errs []error
	for _, m := range l {
		errs = append(errs, m.file.Close())
	}
	return errors.Join(errs...)
}

// ErrOccupied is returned if the directory for a set has other files.
var ErrOccupied = errors.New("directory is not empty")

// arrivingFile exists in a directory while a set is copied there. It contains the id of the set.
const arrivingFile = "ARRIVING"

// Arrival copies a set into an empty directory, file by file. The set exists when its last file does. An interrupted copy restarts
// with the same id.
type Arrival struct{ store Store }

// Arrive starts the copy of the set with that text. done reports that the set exists already.
func (s Store) Arrive(ctx context.Context, id string, text []byte) (a *Arrival, done bool, err error) {
	set, err := ParseSet(text)
	if err != nil {
		return nil, false, err
	}
	if there, err := s.ReadText(ctx, set.Number); err == nil && string(there) == string(text) {
		if _, err := s.Open(ctx, set); err == nil {
			return nil, true, nil
		}
	}
	if err := s.Place.Prepare(""); err != nil {
		return nil, false, err
	}
	names, err := s.Place.List(ctx, "")
	if err != nil {
		return nil, false, err
	}
	begun, err := readFile(ctx, s.Place, arrivingFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, false, err
	}
	if len(names) > 0 && string(begun) != id {
		return nil, false, fmt.Errorf("%w: %q: there is %q in it: choose another one, or move that away", ErrOccupied, s.Place, names[0])
	}
	return &Arrival{s}, false, writeFile(ctx, s.Place, "", arrivingFile, []byte(id), Replaced)
}

// Put writes one file of size bytes.
func (a *Arrival) Put(ctx context.Context, name string, size int64, data io.Reader) error {
	if !filepath.IsLocal(filepath.FromSlash(name)) {
		return fmt.Errorf("a file %q: expected a relative path", name)
	}
	dir := path.Dir(name)
	if err := a.store.Place.Prepare(dir); err != nil {
		return err
	}
	f, err := createFile(ctx, a.store.Place, dir, path.Base(name), size, Replaced)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(f, data); err != nil {
		return err
	}
	if err := f.Publish(); err != nil {
		return err
	}
	a.store.Points.Observe("file put")
	return a.store.Place.Sync(dir)
}

// End checks that all files exist and completes the set.
func (a *Arrival) End(ctx context.Context, number uint64) error {
	set, err := a.store.ReadSet(ctx, number)
	if err != nil {
		return err
	}
	if _, err := a.store.Open(ctx, set); err != nil {
		return err
	}
	if err := a.store.Place.Remove(ctx, arrivingFile); err != nil {
		return err
	}
	return a.store.Place.Sync("")
}
