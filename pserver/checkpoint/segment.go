package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"

	"trainmaster/pserver/optimizer"
)

// Segment is a directory with rows of one table. Its files never change. It stays as long as a checkpoint names it.
type Segment struct {
	Name  string  `json:"name"` // of the directory, beside the checkpoints
	Files []Entry `json:"files"`
}

// Rows are the segments with the rows of one table at a cut.
type Rows struct {
	Full  *Segment `json:"full"`            // all rows, at this cut or an earlier one
	Delta *Segment `json:"delta,omitempty"` // the rows that changed since the cut of Full; nil: Full is of this cut
}

// Segments returns the segments that exist, the full one first.
func (r Rows) Segments() []*Segment {
	if r.Delta == nil {
		return []*Segment{r.Full}
	}
	return []*Segment{r.Full, r.Delta}
}

// Bytes returns the size of all files.
func (s *Segment) Bytes() (n int64) {
	for _, e := range s.Files {
		n += e.Size
	}
	return n
}

// segmentName names the segment of table k that a checkpoint writes.
func segmentName(g Generation, k int) string { return fmt.Sprintf("%v-table-%d", g, k) }

var segmentPattern = regexp.MustCompile(`^(\d{8,}-\d{8,})-table-\d+$`)

// writerOf returns the checkpoint that wrote a segment; false for a name that is not a segment's.
func writerOf(name string) (g Generation, ok bool) {
	found := segmentPattern.FindStringSubmatch(name)
	if found == nil {
		return g, false
	}
	return parseGeneration(found[1])
}

// check returns an error if the manifest does not name all files of a segment.
func (s *Segment) check(o optimizer.Config) error {
	if _, ok := writerOf(s.Name); !ok {
		return fmt.Errorf("it names segment %q: expected START-SEQUENCE-table-NUMBER", s.Name)
	}
	for _, name := range segmentFiles(o) {
		if !slices.ContainsFunc(s.Files, func(e Entry) bool { return e.Name == name }) {
			return fmt.Errorf("it does not name %s of segment %s", name, s.Name)
		}
	}
	return nil
}

// within opens the files in a directory of the shard.
func (f Folder) within(ctx context.Context, dir string) files {
	return func(name string) (Object, error) { return f.place.Open(ctx, path.Join(f.name, dir, name)) }
}

// verifySegments compares all files of the segments with the manifest.
func (c *Checkpoint) verifySegments() error {
	for _, s := range c.Manifest.segments() {
		for _, e := range s.Files {
			if err := e.verify(c.within(s.Name)); err != nil {
				return fmt.Errorf("segment %s: %w", s.Name, err)
			}
		}
	}
	return nil
}

// PruneSegments removes the segments that no checkpoint names and that are not in use by the caller. The segments of a checkpoint that
// exists stay, since it may not have its manifest yet. If a manifest is damaged, all segments stay: its segments are unknown.
func (f Folder) PruneSegments(ctx context.Context, used []string) error {
	names, err := f.place.List(ctx, f.name) // before the manifests: a segment that appears later is not in the list
	if err != nil {
		return err
	}
	named := map[string]bool{}
	for _, name := range used {
		named[name] = true
	}
	for _, name := range names {
		g, ok := parseGeneration(name)
		if !ok {
			continue
		}
		m, err := f.Manifest(ctx, g)
		//guard:unavailable-manifest-keeps-segments
		if errors.Is(err, ErrUnavailable) {
			return err
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // unfinished
		}
		if err != nil {
			return nil //nolint:nilerr // see above
		}
		//guard:named-segment-kept
		for _, s := range m.segments() {
			named[s.Name] = true
		}
	}
	for _, name := range names {
		g, ok := writerOf(name)
		if !ok || named[name] || slices.Contains(names, g.String()) {
			continue
		}
		if err := f.place.RemoveAll(ctx, path.Join(f.name, name)); err != nil {
			return err
		}
		f.Points.Observe("old segment removed")
	}
	return nil
}
