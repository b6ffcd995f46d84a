package persist

import (
	"io"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/model"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/placement"
	core "trainmaster/pserver/shard"
)

// A shard that went back to the beginning while its first checkpoint was waited for has nothing to write.
func TestFirstCheckpointOfNothing(t *testing.T) {
	table, err := placement.New([]placement.Tensor{{Name: "w", Shape: []int{10}}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(optimizer.Config{Kind: optimizer.Adam}, false, table)
	if err != nil {
		t.Fatal(err)
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	for name, isClaimed := range map[string]bool{"gone back": false, "claimed again": true} {
		s := core.New(logrus.NewEntry(log), 0, 1, time.Minute, 0)
		if isClaimed {
			if _, _, err := s.Claim(m, 0, 1, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		store := checkpoint.Store{Place: checkpoint.Disk(t.TempDir())}
		c := &Checkpoints{shard: s, store: store, folder: store.Shard(0), start: 1, log: s.Log}
		if err := c.SaveSelf(t.Context(), checkpoint.First); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if written, err := c.folder.Generations(t.Context()); err != nil || len(written) > 0 {
			t.Errorf("%s: %v were written, %v", name, written, err)
		}
	}
}
