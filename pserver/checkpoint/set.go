package checkpoint

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"trainmaster/internal/failpoint"
)

const setFormat = 1

// Set is one checkpoint of each shard, all of one cut.
type Set struct {
	Format int    `json:"format"`
	Job    string `json:"job"`
	JobID  string `json:"job_id,omitempty"` // hexadecimal; each job instance has another one
	Number uint64 `json:"number"`           // of the cut; 0: the shards were stopped, see [Store.Stopped]
	// After is the number of the set that etcd named before; 0: none, or a version before wrote the set. Sets between the two
	// were never finished, or an operator has named an older one instead.
	After    uint64 `json:"after,omitempty"`
	Mode     string `json:"mode"`
	Version  uint64 `json:"version"` // of all parameters, in synchronous mode
	JobEpoch uint32 `json:"job_epoch"`
	Shards   []Part `json:"shards"` // by index
	// Position is where the data of the job stood, as its master writes it.
	Position json.RawMessage `json:"position,omitempty"`
	// State is the file from which the job starts if etcd has lost its state; nil: none.
	State *Entry `json:"state,omitempty"`
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

// Store is the checkpoints of a job.
type Store struct {
	Place Place
	// Points is called after each change of the stored files.
	Points failpoint.Hook
}

// Shard returns the directory of one shard.
func (s Store) Shard(index int) Folder {
	return Folder{place: s.Place, name: "ps-" + strconv.Itoa(index), Points: s.Points}
}

// SetsDir is the directory of the set files.
const SetsDir = "sets"

const (
	setSuffix   = ".json"
	stateSuffix = ".job"
)

func fileName(number uint64, suffix string) string { return fmt.Sprintf("%08d%s", number, suffix) }

func setName(number uint64) string { return fileName(number, setSuffix) }

// StateOf describes the state of the job that [Store.WriteSet] writes with a set, for [Set.State].
func StateOf(number uint64, state []byte) *Entry {
	return &Entry{fileName(number, stateSuffix), int64(len(state)), digest(state)}
}

// SetNumber is the number of the set whose file has a name; false if it is no set's.
func SetNumber(name string) (uint64, bool) { return numberOf(name, setSuffix) }

// Sets lists the numbers of the sets, the newest first.
func (s Store) Sets(ctx context.Context) ([]uint64, error) {
	names, err := s.Place.List(ctx, SetsDir)
	return numbered(names, setSuffix), err
}

// numberOf returns the number in the name of a file, false for another suffix.
func numberOf(name, suffix string) (uint64, bool) {
	text, _ := strings.CutSuffix(name, suffix)
	n, err := strconv.ParseUint(text, 10, 64)
	return n, err == nil && fileName(n, suffix) == name
}

// numbered lists the numbers of the files with an ending, the greatest first.
func numbered(names []string, suffix string) (numbers []uint64) {
	for _, name := range names {
		if n, ok := numberOf(name, suffix); ok {
			numbers = append(numbers, n)
		}
	}
	slices.SortFunc(numbers, func(a, b uint64) int { return cmp.Compare(b, a) })
	return numbers
}

// ReadSet reads the file of a set, but not its checkpoints.
func (s Store) ReadSet(ctx context.Context, number uint64) (*Set, error) {
	name := path.Join(SetsDir, setName(number))
	text, err := s.ReadText(ctx, number)
	if err != nil {
		return nil, err
	}
	set, err := ParseSet(text)
	if err == nil && set.Number != number {
		err = fmt.Errorf("expected set %d, found set %d", number, set.Number)
	}
	if err != nil {
		return nil, fmt.Errorf("%s/%s: %w", s.Place, name, err)
	}
	return set, nil
}

// ReadText returns the bytes of the file of a set.
func (s Store) ReadText(ctx context.Context, number uint64) ([]byte, error) {
	return readFile(ctx, s.Place, path.Join(SetsDir, setName(number)))
}

// ReadState returns the state of the job that is stored with a set, and checks its digest.
func (s Store) ReadState(ctx context.Context, set *Set) ([]byte, error) {
	if set.State == nil {
		return nil, fmt.Errorf("%v: its master wrote no state of the job: it is of a version before that: %w", set, fs.ErrNotExist)
	}
	if err := set.State.verify(func(name string) (Object, error) { return s.Place.Open(ctx, path.Join(SetsDir, name)) }); err != nil {
		return nil, fmt.Errorf("%v: %w", set, err)
	}
	return readFile(ctx, s.Place, path.Join(SetsDir, set.State.Name))
}

// WriteSet writes the text of a set ([Set.Encode]), after the state of the job that the set names. The set exists when WriteSet
// returns.
func (s Store) WriteSet(ctx context.Context, text, state []byte) error {
	set, err := ParseSet(text)
	if err != nil {
		return err
	}
	if set.State != nil && *set.State != *StateOf(set.Number, state) {
		return fmt.Errorf("%v: state of the job has %d bytes and a SHA-256 that starts with %.12s: expected %d and %.12s", set, len(state), digest(state), set.State.Size, set.State.SHA256)
	}
	if err := s.Place.Prepare(SetsDir); err != nil {
		return err
	}
	s.Points.Observe("sets made")
	if set.State != nil {
		if err := writeFile(ctx, s.Place, SetsDir, set.State.Name, state, Final); err != nil {
			return err
		}
		s.Points.Observe("state of the job written")
	}
	f, err := createFile(ctx, s.Place, SetsDir, setName(set.Number), int64(len(text)), Final)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(text); err != nil {
		return err
	}
	s.Points.Observe("set written")
	if err := f.Publish(); err != nil {
		return err
	}
	s.Points.Observe("set renamed")
	for _, dir := range []string{SetsDir, ""} {
		if err := s.Place.Sync(dir); err != nil {
			return err
		}
	}
	s.Points.Observe("set synced")
	return nil
}

// CheckParts compares the manifests of a set's checkpoints with the digests in the set, and with each other: all must be of the same
// model in the same placement. It reads no other files.
func (s Store) CheckParts(ctx context.Context, set *Set) error {
	var model [sha256.Size]byte
	for i, p := range set.Shards {
		folder := s.Shard(p.Shard)
		c, table, err := folder.begin(ctx, p.Generation)
		if errors.Is(err, ErrUnavailable) {
			return err
		}
		if err == nil && c.Digest != p.SHA256 {
			err = fmt.Errorf("%s has a SHA-256 that starts with %.12s: expected %.12s", ManifestFile, c.Digest, p.SHA256)
		}
		if err != nil {
			return fmt.Errorf("%v is not complete: checkpoint %q of server %d: %w: start all parameter servers with one --checkpoint-dir, "+
				"a directory that all hosts share or a bucket", set, folder.where(p.Generation), p.Shard, err)
		}
		if i == 0 {
			model = table.Digest()
		}
		//guard:parts-of-one-placement
		if table.Digest() != model {
			return fmt.Errorf("%v is not complete: checkpoint %q of server %d has placement epoch %d, checkpoint %q of server 0 has another: "+
				"start the missing parameter servers", set, folder.where(p.Generation), p.Shard, table.Epoch, s.Shard(0).where(set.Shards[0].Generation))
		}
	}
	return nil
}

// Open opens the checkpoints of a set, by shard. It fails unless all of them exist and match the digests in the set.
func (s Store) Open(ctx context.Context, set *Set) ([]*Checkpoint, error) {
	parts := make([]*Checkpoint, len(set.Shards))
	var errs []error
	for i, p := range set.Shards {
		var err error
		if parts[i], err = s.openPart(ctx, set, p); err != nil {
			errs = append(errs, fmt.Errorf("shard %d of %v: %w", i, set, err))
		}
	}
	return parts, errors.Join(errs...)
}

func (s *Set) String() string { return fmt.Sprintf("set %d", s.Number) }

func (s Store) openPart(ctx context.Context, set *Set, p Part) (*Checkpoint, error) {
	c, err := s.Shard(p.Shard).Open(ctx, p.Generation)
	if err != nil {
		return nil, err
	}
	m := c.Manifest
	switch {
	case c.Digest != p.SHA256:
		return nil, fmt.Errorf("%s of %v has a SHA-256 that starts with %.12s: expected %.12s as in the set", ManifestFile, p.Generation, c.Digest, p.SHA256)
	case m.Shard != p.Shard || m.Placement.Shards != len(set.Shards):
		return nil, fmt.Errorf("checkpoint %v is of shard %d of %d, expected %d of %d", p.Generation, m.Shard, m.Placement.Shards, p.Shard, len(set.Shards))
	case m.Mode != set.Mode || m.Mode == Sync && m.Version != set.Version:
		return nil, fmt.Errorf("checkpoint %v is of version %d in mode %s, the set of %d in mode %s", p.Generation, m.Version, m.Mode, set.Version, set.Mode)
	}
	return c, nil
}

// PruneSets removes sets up to a number, except the newest keep ones and spared ones, and returns the remaining sets. A set between one and the
// set before it ([Set.After]) does not count and is removed.
func (s Store) PruneSets(ctx context.Context, upTo uint64, keep int, spared []uint64) (kept []*Set, err error) {
	numbers, err := s.Sets(ctx)
	if err != nil {
		return nil, err
	}
	after := upTo // of the newest set that stays: one above it is not among the older ones
	newest := 0   // sets of keep that stay
	for _, n := range numbers {
		set, err := s.ReadSet(ctx, n)
		if errors.Is(err, ErrUnavailable) {
			return nil, err
		}
		//guard:passed-over-set-pruned-first
		if n > upTo || n <= after && newest < keep && err == nil {
			if err == nil && n <= upTo && set.After > 0 {
				after = set.After
			}
			if err == nil {
				kept = append(kept, set)
				newest++
			}
			continue
		}
		//guard:spared-set-stays
		if err == nil && slices.Contains(spared, n) {
			kept = append(kept, set)
			continue
		}
		if err := s.Place.Remove(ctx, path.Join(SetsDir, setName(n))); err != nil {
			return nil, err
		}
		s.Points.Observe("old set removed")
	}
	return kept, s.pruneStates(ctx, upTo)
}

// pruneStates removes states of jobs without a set, up to a number. No set up to the number may be in progress.
func (s Store) pruneStates(ctx context.Context, upTo uint64) error {
	names, err := s.Place.List(ctx, SetsDir)
	if err != nil {
		return err
	}
	for _, n := range numbered(names, stateSuffix) {
		if n > upTo || slices.Contains(names, setName(n)) { //guard:state-of-next-set-kept
			continue
		}
		if err := s.Place.Remove(ctx, path.Join(SetsDir, fileName(n, stateSuffix))); err != nil {
			return err
		}
		s.Points.Observe("old state removed")
	}
	return nil
}

// Discard removes the unfinished sets of a job: sets that are newer than its latest.
func (s Store) Discard(ctx context.Context, jobID string, latest uint64) error {
	numbers, err := s.Sets(ctx)
	if err != nil {
		return err
	}
	for _, n := range numbers {
		if n <= latest {
			break
		}
		set, err := s.ReadSet(ctx, n)
		if errors.Is(err, ErrUnavailable) {
			return err
		}
		if err != nil || set.JobID != jobID {
			continue // unknown job
		}
		if err := s.Place.Remove(ctx, path.Join(SetsDir, setName(n))); err != nil {
			return err
		}
		s.Points.Observe("failed set removed")
	}
	return s.pruneStates(ctx, math.MaxUint64)
}

func digest(text []byte) string { return fmt.Sprintf("%x", sha256.Sum256(text)) }
