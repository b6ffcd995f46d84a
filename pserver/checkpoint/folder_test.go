package checkpoint

import (
	"os"
	"testing"
)

// Where the count of starts is lost, checkpoints that are there are not newer than those to come.
func TestStartsThatWereLost(t *testing.T) {
	folder := Folder{Path: t.TempDir()}
	if err := os.Mkdir(folder.path(Generation{7, 3}), 0o755); err != nil {
		t.Fatal(err)
	}
	if start, err := folder.CountStart(); err != nil || start != 8 {
		t.Errorf("start %d, %v; expected 8", start, err)
	}
}
