package checkpoint

import (
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
