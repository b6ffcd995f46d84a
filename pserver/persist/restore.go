package persist

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sirupsen/logrus"

	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/placement"
)

// ErrOtherJob says that the checkpoints in a folder are of another job.
var ErrOtherJob = errors.New("the folder has the checkpoints of another job")

// checkJob refuses a folder with the checkpoints of another job. Checkpoints without a job name, and the
// set that etcd names, are not checked.
func (j *JobState) checkJob(ctx context.Context, store checkpoint.Store, of string) error {
	ours := func(what, job string) error {
		if job == "" || j.Name == "" || job == j.Name || job == of {
			return nil
		}
		return fmt.Errorf("%w: %s in %q is of job %q, this server is of job %q: give each job a folder of its own (--checkpoint-dir); to begin with the parameters of %q on purpose, start all servers with --checkpoints-of %s",
			ErrOtherJob, what, store.Place, job, j.Name, job, job)
	}
	numbers, err := store.Sets(ctx)
	if err != nil {
		return err
	}
	for _, n := range numbers {
		text, err := store.ReadText(ctx, n)
		if errors.Is(err, checkpoint.ErrUnavailable) {
			return err
		}
		if err != nil || bytes.Equal(text, j.LatestSet) {
			continue
		}
		set, err := checkpoint.ParseSet(text)
		if err != nil {
			continue // damaged: the choice of a checkpoint reports it
		}
		if err := ours(set.String(), set.Job); err != nil {
			return err
		}
	}
	return nil
}

// otherLife says that a checkpoint is of another start of the job, or of a job that was resumed from a set.
func (j *JobState) otherLife(m *checkpoint.Manifest) bool {
	return j.ID != "" && m.JobID != "" && j.ID != m.JobID
}

// ErrUnusable reports that the checkpoint to start from is damaged or missing. Another checkpoint would lose updates silently.
var ErrUnusable = errors.New("checkpoint is damaged or missing")

// unusable is the error of a damaged checkpoint. A place that cannot be read is no evidence of damage.
func unusable(name string, err error, remedy string) error {
	if errors.Is(err, checkpoint.ErrUnavailable) {
		return fmt.Errorf("%s: %w", name, err)
	}
	return fmt.Errorf("%s: %w: %w: %s", name, ErrUnusable, err, remedy)
}

// useAnother names the commands that move the pointer to another set.
func useAnother(store checkpoint.Store) string {
	return fmt.Sprintf("restore the file, or choose another set: master checkpoint list --checkpoint-dir %[1]q, then master checkpoint use SET --checkpoint-dir %[1]q", store.Place)
}

// setToLoad returns the set in etcd, or the newest set of the folder if etcd names none; nil if there is none. A newer set than the set in
// etcd was never finished, or an operator has chosen an older set.
func (c *Checkpoints) setToLoad(ctx context.Context) (*checkpoint.Set, error) {
	//guard:unreferenced-set-skipped
	if c.job.LatestSet != nil {
		set, err := checkpoint.ParseSet(c.job.LatestSet)
		if err != nil {
			return nil, unusable("the set that etcd names under /checkpoints/latest", err, useAnother(c.store))
		}
		return set, nil
	}
	numbers, err := c.store.Sets(ctx)
	if err != nil || len(numbers) == 0 {
		return nil, err
	}
	set, err := c.store.ReadSet(ctx, numbers[0])
	if err != nil {
		return nil, unusable(fmt.Sprintf("set %d", numbers[0]), err, useAnother(c.store))
	}
	return set, nil
}

// load fills the shard from the set to start from, and returns the set; nil if there is none. A server without a block in the placement
// receives its model from the leader.
func (c *Checkpoints) load(ctx context.Context, moved *placement.Layout) (*checkpoint.Set, error) {
	if moved != nil && !moved.Owns(c.shard.Index()) {
		return nil, nil //nolint:nilnil // there is none
	}
	set, err := c.setToLoad(ctx)
	if err != nil || set == nil {
		return nil, err
	}
	parts, err := c.store.Open(ctx, set)
	if err == nil {
		err = fillFrom(c.shard, parts, c.job, moved)
	}
	//guard:damaged-set-refused
	if err != nil {
		return nil, unusable(set.String(), err, useAnother(c.store))
	}
	c.log.WithFields(logrus.Fields{"set": set.Number, "version": c.shard.Version(), "epoch": c.shard.Epoch()}).Info("parameters restored")
	return set, nil
}

// knownCut is the greatest number of a cut that left something.
func (c *Checkpoints) knownCut(ctx context.Context) (uint64, error) {
	numbers, err := c.store.Sets(ctx)
	if err != nil {
		return 0, err
	}
	last := slices.Max(append(numbers, 0))
	if set, err := checkpoint.ParseSet(c.job.LatestSet); err == nil { // setToLoad refuses a pointer that cannot be parsed
		last = max(last, set.Number)
	}
	return last, nil
}

// restore fills the shard from the set to start from. If the set is damaged or missing, the shard waits without parameters.
func (c *Checkpoints) restore(ctx context.Context, job JobState) error {
	c.job = job
	layout, err := job.Layout()
	if err != nil {
		return err
	}
	last, err := c.knownCut(ctx)
	if err != nil {
		return err
	}
	c.lastCut.Store(max(last, c.lastCut.Load()))
	set, err := c.load(ctx, layout)
	if errors.Is(err, ErrUnusable) {
		c.refuse(err)
		return nil
	}
	if err == nil {
		err = c.shard.CheckRestored(layout)
	}
	if err != nil {
		return err
	}
	if set != nil {
		c.restored = set.Number
		c.statusMu.Lock()
		c.latest = latestCut{number: set.Number, changes: c.shard.Changes()}
		if index := c.shard.Index(); index < len(set.Shards) {
			c.latest.part = set.Shards[index].Generation
			c.newest = c.latest.part.String()
		}
		c.statusMu.Unlock()
		c.shard.Reserve()
	}
	c.shard.SetUnrestored("")
	//guard:initialization-repeated-without-set
	c.shard.SetNoSet(set == nil && (layout == nil || layout.Owns(c.shard.Index())))
	return nil
}

// refuse records the reason why the shard waits.
func (c *Checkpoints) refuse(err error) {
	if c.shard.SetUnrestored(err.Error()) {
		c.log.WithError(err).Error("checkpoint refused, waiting for an operator")
	}
}

// restoreAgain restores a waiting shard while connections are open. A waiting shard serves no connection.
func (c *Checkpoints) restoreAgain(ctx context.Context, job JobState) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.shard.Exclusively(func() error {
		if c.shard.Unrestored() == "" {
			return nil // the leader rolled the shard back to a set before
		}
		return c.restore(ctx, job)
	})
}
