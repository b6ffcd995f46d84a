package persist

import (
	"context"
	"fmt"
	"trainmaster/pserver/placement"
	core "trainmaster/pserver/shard"
	"trainmaster/pserver/table"
)

// JobState describes the job when a server starts.
type JobState struct {
	Name   string // Empty if not known.
	ID     string // Hexadecimal. Each job instance has another one. Empty if not known.
	Epoch  uint32
	Shards int // Shards of the model; 0 keeps the number of the checkpoint.

	LatestSet []byte    // Set to start from, see [checkpoint.Set]; nil if no set is named.
	Led       bool      // Whether a master leads.
	Named     int64     // Revision of LatestSet, which grows with each write; 0 if no set is named.
	TableKey  table.Key // Hash key for ids of embedding tables, unless the checkpoint has another; zero without tables.
	Placement []byte    // Owners after migrations, see [placement.Layout]; nil before the first.
	Rate      core.Rate // Committed factor of the learning rate of an asynchronous job; number 0: it was not changed.
}

// Layout is where blocks were moved to, nil if none ever was.
func (j *JobState) Layout() (*placement.Layout, error) {
	if j.Placement == nil {
		return nil, nil //nolint:nilnil // there is none
	}
	l, err := placement.ParseLayout(j.Placement)
	if err != nil {
		return nil, err
	}
	if j.Shards != 0 && j.Shards < l.Shards {
		return nil, fmt.Errorf("parameter servers of the job: expected at least %d, which own blocks, found %d: use master scale, or delete the placement while no server runs", l.Shards, j.Shards)
	}
	j.Shards = l.Shards
	return l, nil
}

// Jobs is where a server reads the state of its job.
type Jobs interface {
	Job() JobState // as it was when the index was claimed
	// Current returns the job as it is now.
	Current(ctx context.Context) (JobState, error)
	// AskSet has the leader look which servers want a checkpoint set.
	AskSet(ctx context.Context) error
}
