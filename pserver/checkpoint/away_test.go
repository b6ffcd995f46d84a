package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/staleness"
	"trainmaster/pserver/table"
)

// away is a disk of which some files cannot be read for now.
type away struct {
	Disk
	names []string
}

func (a *away) Open(ctx context.Context, name string) (Object, error) {
	if slices.Contains(a.names, name) {
		return nil, fmt.Errorf("%w: read %s", ErrUnavailable, name)
	}
	return a.Disk.Open(ctx, name)
}

var (
	writtenTable = table.Config{Name: "users", Dim: 2, Init: table.Zeros}
	writtenRule  = optimizer.Config{Kind: optimizer.SGD, LearningRate: 1}
)

// writeCheckpoint writes a checkpoint of a shard that is alone, with one table: an empty delta, or an empty full segment without full.
// It returns the full segment.
func writeCheckpoint(t *testing.T, f Folder, g Generation, full *Segment, change func(*Manifest)) *Segment {
	t.Helper()
	cfg, o := writtenTable, writtenRule
	placed, err := placement.New([]placement.Tensor{{Name: "w", Shape: []int{10}}}, 1, cfg)
	if err != nil {
		t.Fatal(err)
	}
	w, err := f.Begin(t.Context(), g)
	if err != nil {
		t.Fatal(err)
	}
	share := ShareOf(placed, 0)
	weights, err := w.Create(WeightsFile, share.Tensors(""), nil)
	if err == nil {
		_, err = weights.Write(make([]byte, 40))
	}
	if err == nil {
		_, err = w.CreateSlots(share, nil, nil)
	}
	if err = errors.Join(err, w.Marks(&Marks{Versions: make([]uint64, len(share.Blocks)), Updates: make([]uint64, len(share.Blocks))}, nil)); err != nil {
		t.Fatal(err)
	}
	out, err := w.CreateTable(0, cfg, o, TableSizes{}, full, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, slot := range placed.HeldSlots(0, 0) {
		if err := out.Add(slot, &table.Image{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.Finish(); err != nil {
		t.Fatal(err)
	}
	m := NewManifest(o, staleness.Bound{}, Async, placed)
	m.JobEpoch = 1
	change(m)
	if _, _, err := w.Finish(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	return m.Rows[0].Full
}

// F51: what cannot be read for now is not damaged and not gone. Nothing is removed, chosen or passed over because of it.
func TestAwayIsNotGone(t *testing.T) {
	place := &away{Disk: Disk(t.TempDir())}
	store := Store{Place: place}
	folder := store.Shard(0)
	if err := folder.Prepare(); err != nil {
		t.Fatal(err)
	}
	if _, err := folder.CountStart(t.Context()); err != nil {
		t.Fatal(err)
	}
	base, middle, newest := Generation{1, 1}, Generation{1, 2}, Generation{1, 3}
	full := writeCheckpoint(t, folder, base, nil, func(m *Manifest) { m.Set = 1 })
	for _, g := range []Generation{middle, newest} {
		writeCheckpoint(t, folder, g, full, func(m *Manifest) { m.Set = 1 })
	}
	for number := range uint64(3) {
		set := &Set{Job: "test", Number: number + 1, Mode: Async, JobEpoch: 1, Shards: []Part{{Generation: newest, SHA256: "x"}}}
		text, err := set.Encode()
		if err == nil {
			err = store.WriteSet(t.Context(), text, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for what, test := range map[string]struct {
		away string
		do   func(context.Context) error
	}{
		"pruning sets":    {"sets/00000002.json", func(ctx context.Context) error { _, err := store.PruneSets(ctx, 3, 2, nil); return err }},
		"discarding sets": {"sets/00000003.json", func(ctx context.Context) error { return store.Discard(ctx, "of another instance", 0) }},
		"discarding of a shard": {"ps-0/00000001-00000002/MANIFEST.json", func(ctx context.Context) error {
			_, err := folder.Discard(ctx, "of another instance", 0, 1)
			return err
		}},
		"choosing the newest":            {"sets/00000003.json", func(ctx context.Context) error { _, err := store.Newest(ctx); return err }},
		"opening a segment":              {"ps-0/00000001-00000001-table-0/rows.safetensors", func(ctx context.Context) error { _, err := folder.Open(ctx, newest); return err }},
		"pruning segments":               {"ps-0/00000001-00000002/MANIFEST.json", func(ctx context.Context) error { return folder.PruneSegments(ctx, nil) }},
		"counting a start":               {"ps-0/STARTS", func(ctx context.Context) error { _, err := folder.CountStart(ctx); return err }},
		"removing what may have its end": {"ps-0/00000001-00000002/MANIFEST.json", func(ctx context.Context) error { return folder.Remove(ctx, middle) }},
	} {
		place.names = []string{test.away}
		if err := test.do(t.Context()); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %v", what, err)
		}
		place.names = nil
		numbers, err := store.Sets(t.Context())
		if err != nil || len(numbers) != 3 {
			t.Fatalf("%s: sets %v are left, %v", what, numbers, err)
		}
		for _, g := range []Generation{base, middle, newest} {
			if _, err := folder.Open(t.Context(), g); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	if err := folder.PruneTo(t.Context(), []Generation{newest}); err != nil {
		t.Fatal(err)
	}
	if list, err := folder.Generations(t.Context()); err != nil || !slices.Equal(list, []Generation{newest}) {
		t.Errorf("pruned to %v, %v", list, err)
	}
	if _, err := folder.Open(t.Context(), newest); err != nil {
		t.Error(err)
	}
}

// Sets that an operator has passed over do not count as kept: after set 1 was named instead of set 2, set 3 has set 1 before it.
func TestPassedOverSetIsRemovedFirst(t *testing.T) {
	store := Store{Place: Disk(t.TempDir())}
	for number, after := range map[uint64]uint64{1: 0, 2: 1, 3: 1} {
		set := &Set{Job: "test", Number: number, After: after, Mode: Async, JobEpoch: 1, Shards: []Part{{Generation: Generation{1, number}, SHA256: "x"}}}
		text, err := set.Encode()
		if err == nil {
			err = store.WriteSet(t.Context(), text, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	kept, err := store.PruneSets(t.Context(), 3, 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(kept) != 2 || kept[0].Number != 3 || kept[1].Number != 1 {
		t.Errorf("kept %v, expected sets 3 and 1", kept)
	}
	if left, err := store.Sets(t.Context()); err != nil || len(left) != 2 {
		t.Errorf("left %v, %v, expected 2 sets", left, err)
	}
}

func TestSparedSetsStay(t *testing.T) {
	store := Store{Place: Disk(t.TempDir())}
	if err := store.Place.Prepare(SetsDir); err != nil {
		t.Fatal(err)
	}
	for number := range uint64(5) {
		set := &Set{Job: "test", Number: number + 1, After: number, Mode: Async, JobEpoch: 1, Shards: []Part{{Generation: Generation{1, number + 1}, SHA256: "x"}}}
		text, err := set.Encode()
		if err == nil {
			err = store.WriteSet(t.Context(), text, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		spared, left []uint64
	}{{[]uint64{1, 3, 9}, []uint64{5, 4, 3, 1}}, {[]uint64{1}, []uint64{5, 4, 1}}, {nil, []uint64{5, 4}}} {
		kept, err := store.PruneSets(t.Context(), 5, 2, c.spared)
		if err != nil || len(kept) != len(c.left) {
			t.Fatalf("kept %v, %v, expected %d sets", kept, err, len(c.left))
		}
		if left, err := store.Sets(t.Context()); err != nil || !slices.Equal(left, c.left) {
			t.Errorf("spared %v: left %v, %v, expected %v", c.spared, left, err, c.left)
		}
	}
}

// A late removal of old sets keeps the state of the job that was written for the next set, before the file of that set exists.
func TestPruneKeepsStateOfTheNextSet(t *testing.T) {
	dir := t.TempDir()
	store := Store{Place: Disk(dir)}
	if err := store.Place.Prepare(SetsDir); err != nil {
		t.Fatal(err)
	}
	for number := range uint64(2) {
		if err := writeFile(t.Context(), store.Place, SetsDir, StateOf(number+1, nil).Name, nil, Final); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := store.PruneSets(t.Context(), 1, 1, nil); err != nil {
		t.Fatal(err)
	}
	if names, err := store.Place.List(t.Context(), SetsDir); err != nil || !slices.Equal(names, []string{StateOf(2, nil).Name}) {
		t.Errorf("left %q, %v; expected the state of set 2", names, err)
	}
}
