package checkpoint

import (
	"testing"
)

// Where the count of starts is lost, checkpoints that are there are not newer than those to come.
func TestStartsThatWereLost(t *testing.T) {
	folder := Store{Place: Disk(t.TempDir())}.Shard(0)
	if err := folder.place.Prepare(folder.path(Generation{7, 3})); err != nil {
		t.Fatal(err)
	}
	if start, err := folder.CountStart(t.Context()); err != nil || start != 8 {
		t.Errorf("start %d, %v; expected 8", start, err)
	}
}
