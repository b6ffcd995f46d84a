package restore

import (
	"errors"
	"testing"

	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/checkpoint/storage"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/staleness"
)

// A set is refused if servers would load newer checkpoints of a stop instead. They load none of a job with another id.
func TestNewerStopOfTheSameJobIsRefused(t *testing.T) {
	place, err := storage.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer place.Close()
	store := checkpoint.Store{Place: place}
	folder := store.Shard(0)
	if err := folder.Prepare(); err != nil {
		t.Fatal(err)
	}
	if _, err := folder.CountStart(t.Context()); err != nil {
		t.Fatal(err)
	}
	table, err := placement.New([]placement.Tensor{{Name: "w", Shape: []int{10}}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	w, err := folder.Begin(t.Context(), checkpoint.Generation{Start: 1, Sequence: 2})
	if err != nil {
		t.Fatal(err)
	}
	share := checkpoint.ShareOf(table, 0)
	weights, err := w.Create(checkpoint.WeightsFile, share.Tensors(""), nil)
	if err == nil {
		_, err = weights.Write(make([]byte, 40))
	}
	if err == nil {
		_, err = w.CreateSlots(share, nil, nil)
	}
	if err = errors.Join(err, w.Marks(&checkpoint.Marks{Versions: make([]uint64, len(share.Blocks))}, nil)); err != nil {
		t.Fatal(err)
	}
	m := checkpoint.NewManifest(optimizer.Config{Kind: optimizer.SGD, LearningRate: 1}, staleness.Bound{}, checkpoint.Async, table)
	m.JobEpoch, m.Saved, m.JobID = 1, checkpoint.Stop, "aa"
	if _, _, err := w.Finish(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name     string
		sequence uint64
		jobID    string
		refused  bool
	}{
		{"newer, same id", 1, "aa", true},
		{"newer, another id", 1, "bb", false},
		{"older, same id", 3, "aa", false},
	} {
		set := &checkpoint.Set{Number: 1, Shards: []checkpoint.Part{{Generation: checkpoint.Generation{Start: 1, Sequence: tt.sequence}}}}
		if err := noNewerStop(t.Context(), store, set, tt.jobID); (err != nil) != tt.refused {
			t.Errorf("%s: found %v, expected refused %v", tt.name, err, tt.refused)
		}
	}
}
