package checkpoint

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const setFormat = 1

// Set is one checkpoint of every shard, all taken at one cut.
type Set struct {
	Format   int    `json:"format"`
	Job      string `json:"job"`
	Number   uint64 `json:"number"` // of the cut; 0: the shards were stopped, see [Store.Stopped]
	Mode     string `json:"mode"`
	Version  uint64 `json:"version"` // of all parameters, in synchronous mode
	JobEpoch uint32 `json:"job_epoch"`
	Shards   []Part `json:"shards"` // by index
	// Position is where the data of the job stood, as its master writes it.
	Position json.RawMessage `json:"position,omitempty"`
}

// Part is a shard's checkpoint in a set.
type Part struct {
	Shard int `json:"shard"`
	Generation
	SHA256 string `json:"sha256"` // of its MANIFEST.json
}

// Encode returns the bytes of the set's file.
func (s *Set) Encode() ([]byte, error) {
	s.Format = setFormat
	return seal(s)
}

// ParseSet is the reverse of Encode.
func ParseSet(text []byte) (*Set, error) {
	var s Set
	if err := unseal(text, &s); err != nil {
		return nil, err
	}
	if s.Format != setFormat {
		return nil, fmt.Errorf("set has format %d: this version reads %d", s.Format, setFormat)
	}
	if s.Number == 0 || len(s.Shards) == 0 {
		return nil, fmt.Errorf("set %d has %d shards: expected a number and at least one shard", s.Number, len(s.Shards))
	}
	for i, p := range s.Shards {
		if p.Shard != i {
			return nil, fmt.Errorf("set %d: expected shard %d in row %d, found %d", s.Number, i, i, p.Shard)
		}
	}
	return &s, nil
}

// Store is the folder of all checkpoints of a job.
type Store struct {
	Dir string
	// Step (may be nil) is called after each thing that changes the disk; tests die there.
	Step func(what string)
}

// Shard is the folder of one shard.
func (s Store) Shard(index int) Folder {
	return Folder{Path: filepath.Join(s.Dir, "ps-"+strconv.Itoa(index)), Step: s.Step}
}

func (s Store) did(what string) {
	if s.Step != nil {
		s.Step(what)
	}
}

func (s Store) setsDir() string { return filepath.Join(s.Dir, "sets") }

func setName(number uint64) string { return fmt.Sprintf("%08d.json", number) }

// Sets lists the numbers of the sets, the newest first.
func (s Store) Sets() ([]uint64, error) {
	entries, err := os.ReadDir(s.setsDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	var numbers []uint64
	for _, e := range entries {
		text, _ := strings.CutSuffix(e.Name(), ".json")
		if n, err := strconv.ParseUint(text, 10, 64); err == nil && setName(n) == e.Name() {
			numbers = append(numbers, n)
		}
	}
	slices.SortFunc(numbers, func(a, b uint64) int { return cmp.Compare(b, a) })
	return numbers, nil
}

// ReadSet reads the manifest of a set. Its shards' checkpoints are not looked at.
func (s Store) ReadSet(number uint64) (*Set, error) {
	path := filepath.Join(s.setsDir(), setName(number))
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	set, err := ParseSet(text)
	if err == nil && set.Number != number {
		err = fmt.Errorf("expected set %d, found set %d", number, set.Number)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return set, nil
}

// WriteSet writes what [Set.Encode] returned: the set exists when that has happened.
func (s Store) WriteSet(text []byte) error {
	set, err := ParseSet(text)
	if err != nil {
		return err
	}
	dir := s.setsDir()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	s.did("sets made")
	f, err := createFile(dir, setName(set.Number))
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(text); err != nil {
		return err
	}
	s.did("set written")
	if _, err := f.publish(); err != nil {
		return err
	}
	s.did("set renamed")
	if err := syncFolder(dir); err != nil {
		return err
	}
	if err := syncFolder(s.Dir); err != nil {
		return err
	}
	s.did("set synced")
	return nil
}

// Open opens the checkpoints of a set, by shard. It is complete when all are there as the
// set names them and their digests hold.
func (s Store) Open(set *Set) ([]*Checkpoint, error) {
	parts := make([]*Checkpoint, len(set.Shards))
	var errs []error
	for i, p := range set.Shards {
		var err error
		if parts[i], err = s.openPart(set, p); err != nil {
			errs = append(errs, fmt.Errorf("shard %d of %v: %w", i, set, err))
		}
	}
	return parts, errors.Join(errs...)
}

func (s *Set) String() string {
	if s.Number == 0 {
		return "the checkpoints of the last stop"
	}
	return fmt.Sprintf("set %d", s.Number)
}

func (s Store) openPart(set *Set, p Part) (*Checkpoint, error) {
	c, err := s.Shard(p.Shard).Open(p.Generation)
	if err != nil {
		return nil, err
	}
	m := c.Manifest
	switch {
	case c.Digest != p.SHA256:
		return nil, fmt.Errorf("%s of %v has a SHA-256 that starts with %.12s, the set says %.12s", ManifestFile, p.Generation, c.Digest, p.SHA256)
	case m.Shard != p.Shard || m.Placement.Shards != len(set.Shards):
		return nil, fmt.Errorf("checkpoint %v is of shard %d of %d, expected %d of %d", p.Generation, m.Shard, m.Placement.Shards, p.Shard, len(set.Shards))
	case m.Mode != set.Mode || m.Mode == Sync && m.Version != set.Version && set.Number != 0: // who was stopped first may lack a step, as if it had been killed
		return nil, fmt.Errorf("checkpoint %v is of version %d in mode %s, the set of %d in mode %s", p.Generation, m.Version, m.Mode, set.Version, set.Mode)
	}
	return c, nil
}

// Stopped makes a set of the newest checkpoints of the shards, if all of them saved
// themselves for the same reason in the same life of the servers, and none of them went on
// from there. False if that is not so: then they are of different moments.
func (s Store) Stopped() (*Set, bool) {
	first, err := s.Shard(0).newest()
	if err != nil {
		return nil, false
	}
	m := first.Manifest
	set := &Set{Format: setFormat, Mode: m.Mode, Version: m.Version, JobEpoch: m.JobEpoch}
	for i := range m.Placement.Shards {
		c, err := s.Shard(i).newest()
		if err != nil || c.Manifest.Set != 0 || c.Manifest.Life != m.Life || c.Manifest.Saved != m.Saved || s.Shard(i).resumed(c.Manifest.Generation) {
			return nil, false
		}
		set.Shards = append(set.Shards, Part{i, c.Manifest.Generation, c.Digest})
	}
	return set, true
}

// PruneSets removes the sets beyond the newest to keep, of those up to a number, and
// returns those that stay.
func (s Store) PruneSets(upTo uint64, keep int) (kept []*Set, err error) {
	numbers, err := s.Sets()
	if err != nil {
		return nil, err
	}
	for _, n := range numbers {
		set, err := s.ReadSet(n)
		if n > upTo || len(kept) < keep && err == nil {
			if err == nil {
				kept = append(kept, set)
			}
			continue
		}
		if err := os.Remove(filepath.Join(s.setsDir(), setName(n))); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		s.did("old set removed")
	}
	return kept, nil
}

func digest(text []byte) string { return fmt.Sprintf("%x", sha256.Sum256(text)) }
