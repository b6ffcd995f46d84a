package pserver

import (
	"errors"
	"io"
	"testing"
	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/persist"
	core "trainmaster/pserver/shard"

	"github.com/sirupsen/logrus"
)

// A server that knows its job from its start refuses other jobs from the beginning.
func TestRetiredByAnotherJob(t *testing.T) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	for where, place := range map[string]checkpoint.Place{"no checkpoints": nil, "a folder": checkpoint.Disk(t.TempDir())} {
		server := &Server{cfg: Config{Log: logrus.NewEntry(log)}, place: place}
		s, _, err := server.open(t.Context(), ownClaim{})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Retire(1, core.NewRetirement("6f74686572", 100, nil), nil); !errors.Is(err, core.ErrNotLeader) || s.Follows(0) != nil {
			t.Errorf("%s: %v, %v: expected a refusal", where, err, s.Follows(0))
		}
		if err := s.Retire(1, core.NewRetirement("6a6f62", 100, nil), nil); err != nil {
			t.Errorf("%s: %v", where, err)
		}
	}
}

type ownClaim struct{ Claim }

func (ownClaim) Index() int { return 0 }

func (ownClaim) Job() persist.JobState { return persist.JobState{ID: "6a6f62", Shards: 1} }
