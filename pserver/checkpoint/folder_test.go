package checkpoint

import (
	"slices"
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
