package checkpoint

import (
	"slices"
	"strings"
	"testing"
)

// If the count of starts is lost, existing checkpoints are not newer than later ones.
func TestStartsThatWereLost(t *testing.T) {
	folder := Store{Place: Disk(t.TempDir())}.Shard(0)
	if err := folder.place.Prepare(folder.path(Generation{7, 3})); err != nil {
		t.Fatal(err)
	}
	if start, err := folder.CountStart(t.Context()); err != nil || start != 8 {
		t.Errorf("start %d, %v; expected 8", start, err)
	}
}

// A server that was replaced after it compared the count of starts removes nothing that its successor is writing.
func TestDiscardKeepsCheckpointsOfLaterStarts(t *testing.T) {
	folder := Store{Place: Disk(t.TempDir())}.Shard(0)
	own, later := Generation{1, 1}, Generation{2, 1}
	for _, g := range []Generation{own, later} {
		if err := folder.place.Prepare(folder.path(g)); err != nil {
			t.Fatal(err)
		}
	}
	if removed, err := folder.Discard(t.Context(), "aa", 0, own.Start); err != nil || !slices.Equal(removed, []Generation{own}) {
		t.Errorf("removed %v, %v; expected %v", removed, err, own)
	}
	if left, err := folder.Generations(t.Context()); err != nil || !slices.Equal(left, []Generation{later}) {
		t.Errorf("left %v, %v; expected %v", left, err, later)
	}
}

// A set has no parts of different placements: no server could load it.
func TestPartsOfASetHaveOnePlacement(t *testing.T) {
	store := Store{Place: Disk(t.TempDir())}
	check := func(epochs ...uint32) error {
		set := &Set{Number: 1}
		for i, epoch := range epochs {
			g := Generation{1, uint64(epoch)}
			if err := store.Shard(i).Prepare(); err != nil {
				t.Fatal(err)
			}
			if _, err := store.Shard(i).CountStart(t.Context()); err != nil {
				t.Fatal(err)
			}
			writeCheckpoint(t, store.Shard(i), g, nil, func(m *Manifest) {
				m.Shard, m.Placement.Epoch, m.Placement.Shards = i, epoch, len(epochs)
			})
			c, _, err := store.Shard(i).begin(t.Context(), g)
			if err != nil {
				t.Fatal(err)
			}
			set.Shards = append(set.Shards, Part{Shard: i, Generation: g, SHA256: c.Digest})
		}
		return store.CheckParts(t.Context(), set)
	}
	if err := check(1, 2); err == nil || !strings.Contains(err.Error(), "placement") {
		t.Errorf("parts of two placements: found %v", err)
	}
	store.Place = Disk(t.TempDir())
	if err := check(2, 2); err != nil {
		t.Errorf("parts of one placement: %v", err)
	}
}
