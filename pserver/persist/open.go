package persist

import (
	"context"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/pserver/checkpoint"
	core "trainmaster/pserver/shard"
)

// Options configure the checkpoints of a shard.
type Options struct {
	Store         checkpoint.Store
	Index         int
	Job           JobState
	CheckpointsOf string        // another job whose checkpoints may be loaded; "": none
	CutLimit      time.Duration // maximum duration of a cut; updates copy the state that they change until the cut ends
	Log           *logrus.Entry
}

// Open takes the directory of a shard for this start of its server. Restore must follow.
func Open(ctx context.Context, o Options) (*Checkpoints, error) {
	folder := o.Store.Shard(o.Index)
	if err := folder.Prepare(); err != nil {
		return nil, fmt.Errorf("checkpoint directory (--checkpoint-dir): %w: choose a directory with write permission", err)
	}
	//guard:checkpoints-of-this-job
	if err := o.Job.checkJob(ctx, o.Store, o.CheckpointsOf); err != nil { // before this start takes the directory from a server of that job
		return nil, err
	}
	start, err := folder.CountStart(ctx)
	if err != nil {
		return nil, fmt.Errorf("count this start among the checkpoints (--checkpoint-dir): %w", err)
	}
	return &Checkpoints{
		store: o.Store, folder: folder, start: start, job: o.Job, cutLimit: o.CutLimit, log: o.Log, superseded: make(chan struct{}), begun: make(chan struct{}, 1), latest: noCut,
	}, nil
}

// None returns the checkpoints of a shard that keeps none. It can roll back to the beginning.
func None(s *core.Shard, log *logrus.Entry) *Checkpoints { return &Checkpoints{shard: s, log: log} }

// Start is the number of this start of the server, from 1.
func (c *Checkpoints) Start() uint64 { return c.start }

// LastCut is the greatest known number of a cut.
func (c *Checkpoints) LastCut() uint64 { return c.lastCut.Load() }

// Superseded is closed when a later start owns the directory.
func (c *Checkpoints) Superseded() <-chan struct{} { return c.superseded }

// Restore fills the shard from the set to start from. If the set is damaged or missing, the shard waits without parameters.
func (c *Checkpoints) Restore(ctx context.Context, s *core.Shard) error {
	c.shard = s
	return c.restore(ctx, c.job)
}
