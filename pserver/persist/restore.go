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
	core "trainmaster/pserver/shard"
)

// restoring is the choice of what a shard starts from, the first of these that exists:
//
//  1. What the shard saved itself in this life of the servers, newer than the latest set: the
//     others have gone on without it, and it goes on too.
//  2. What all shards saved themselves when they were stopped in order, newer than the latest set.
//  3. The set that etcd names, or the newest on the disk if etcd names none.
//  4. What the shard saved itself, if there is no set.
//
// If the choice is damaged, the shard takes no other one: it waits for an operator.
// All shards that start together choose the same, since none of 1 is there then.
type restoring struct {
	shard *core.Shard
	store checkpoint.Store
	job   JobState
	moved *placement.Layout // nil: no block ever was
}

// ErrOtherJob says that the checkpoints in a folder are of another job.
var ErrOtherJob = errors.New("the folder has the checkpoints of another job")

// checkJob refuses a folder with the checkpoints of another job. A version that wrote no name is not asked for it; nor is the
// set that etcd names, which is an operator's doing.
func (j *JobState) checkJob(ctx context.Context, store checkpoint.Store, index int, of string) error {
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
	folder := store.Shard(index)
	list, err := folder.Generations(ctx)
	if err != nil {
		return err
	}
	for _, g := range list {
		m, err := folder.Manifest(ctx, g)
		if errors.Is(err, checkpoint.ErrUnavailable) {
			return err
		}
		if err != nil || m.Set != 0 {
			continue
		}
		if err := ours("checkpoint "+g.String(), m.Job); err != nil {
			return err
		}
	}
	return nil
}

// otherLife says that a checkpoint is of another life of the job: it was started again, or resumed from a set.
func (j *JobState) otherLife(m *checkpoint.Manifest) bool {
	return j.ID != "" && m.JobID != "" && j.ID != m.JobID
}

// errUnusable says that the checkpoint to start from is damaged or missing. Another one would lose updates without a word.
var ErrUnusable = errors.New("checkpoint is damaged or missing")

// candidate is something to start from.
type candidate struct {
	name   string
	own    string // the checkpoint of this shard in it, if there is one
	remedy string // what an operator can do if it is damaged
	parts  func(ctx context.Context) ([]*checkpoint.Checkpoint, error)

	resumed bool // this shard alone goes on from it
	stopped bool // all shards saved themselves for it
}

// run fills the shard, and says from what: the zero value when there is nothing to start from. The error is errUnusable if the
// choice is damaged, and [checkpoint.ErrUnavailable] if a place cannot be read now.
func (r *restoring) run(ctx context.Context) (candidate, error) {
	if r.moved != nil && !r.moved.Owns(r.shard.Index()) {
		return candidate{}, nil // the leader says what the model is
	}
	c, err := r.choose(ctx)
	if err != nil || c == nil {
		return candidate{}, err
	}
	parts, err := c.parts(ctx)
	if err == nil {
		err = fillFrom(r.shard, parts, r.job, r.moved)
	}
	//guard:damaged-set-refused
	if err != nil {
		return candidate{}, unusable(c.name, err, c.remedy)
	}
	if c.resumed {
		if err := r.store.Shard(r.shard.Index()).Resume(ctx, parts[0].Manifest.Generation); err != nil {
			return candidate{}, err
		}
	}
	r.shard.Log.WithFields(logrus.Fields{"checkpoint": c.name, "version": r.shard.Version(), "epoch": r.shard.Epoch()}).Info("parameters restored")
	return *c, nil
}

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

const moveAway = "restore the file, or move that checkpoint out of the folder to go on without it; then start the server again"

// choose returns what to start from, nil if there is nothing.
func (r *restoring) choose(ctx context.Context) (*candidate, error) {
	set, err := r.set(ctx)
	if err != nil {
		return nil, err
	}
	newer := func(index int, g checkpoint.Generation) bool {
		return set == nil || index >= len(set.Shards) || g.Compare(set.Shards[index].Generation) > 0
	}
	own, others, err := r.own(ctx, newer)
	if err != nil {
		return nil, err
	}
	//guard:job-instance-compared
	if own != nil && r.job.Shards > 1 && own.Life == r.job.Life && !r.job.otherLife(own) {
		c := r.alone(own)
		c.resumed = true
		return c, nil
	}
	stopped, err := r.store.Stopped(ctx)
	if err != nil {
		return nil, unusable("checkpoints of the last stop", err, moveAway)
	}
	if stopped != nil && newer(0, stopped.Shards[0].Generation) && (r.job.LatestSet == nil || r.job.ID == stopped.JobID) {
		c := r.together(stopped, moveAway)
		c.stopped = true
		return c, nil
	}
	switch {
	case set != nil:
		return r.together(set, useAnother(r.store)), nil
	case own != nil:
		return r.alone(own), nil
	case others > 0:
		return nil, fmt.Errorf("checkpoints of shard %d in %q: expected %d shards, found %d checkpoints for another number and no set of all shards: start as many servers as there were", r.shard.Index(), r.store.Place, r.job.Shards, others)
	}
	return nil, nil
}

// set returns the set that etcd names, or the newest one of the folder if etcd names none; nil if there is none. A set that is
// newer than the one that etcd names was never finished, or an operator has chosen an older one.
func (r *restoring) set(ctx context.Context) (*checkpoint.Set, error) {
	//guard:unreferenced-set-skipped
	if r.job.LatestSet != nil {
		set, err := checkpoint.ParseSet(r.job.LatestSet)
		if err != nil {
			return nil, unusable("the set that etcd names under /checkpoints/latest", err, useAnother(r.store))
		}
		return set, nil
	}
	numbers, err := r.store.Sets(ctx)
	if err != nil || len(numbers) == 0 {
		return nil, err
	}
	set, err := r.store.ReadSet(ctx, numbers[0])
	if err != nil {
		return nil, unusable(fmt.Sprintf("set %d", numbers[0]), err, useAnother(r.store))
	}
	return set, nil
}

// lastCut is the greatest number of a cut that left something.
func (r *restoring) lastCut(ctx context.Context) (uint64, error) {
	numbers, err := r.store.Sets(ctx)
	if err != nil {
		return 0, err
	}
	last := slices.Max(append(numbers, 0))
	if set, err := checkpoint.ParseSet(r.job.LatestSet); err == nil { // set refuses a pointer that cannot be parsed
		last = max(last, set.Number)
	}
	return last, nil
}

// own returns the newest checkpoint that this shard saved by itself, if it is newer than the set; nil if there is none. others
// counts those of another number of shards before it.
func (r *restoring) own(ctx context.Context, newer func(int, checkpoint.Generation) bool) (own *checkpoint.Manifest, others int, err error) {
	folder := r.store.Shard(r.shard.Index())
	list, err := folder.Generations(ctx)
	if err != nil {
		return nil, 0, err
	}
	for _, g := range list {
		if !newer(r.shard.Index(), g) {
			break
		}
		whole, err := folder.Whole(ctx, g)
		if err != nil {
			return nil, 0, err
		}
		if !whole {
			continue // it was never finished
		}
		m, err := folder.Manifest(ctx, g)
		inSet := false
		if err != nil && !errors.Is(err, checkpoint.ErrUnavailable) {
			var inErr error
			if inSet, inErr = r.store.InSet(ctx, r.shard.Index(), g); inErr != nil {
				return nil, 0, inErr
			}
		}
		switch {
		case inSet: // of a set that is not named any more
		case err != nil:
			return nil, 0, unusable(fmt.Sprintf("checkpoint %v of this shard", g), err, moveAway)
		//guard:set-part-is-not-a-checkpoint
		case m.Set != 0:
		case r.job.Shards != 0 && m.Placement.Shards != r.job.Shards:
			others++
		default:
			return m, others, nil
		}
	}
	return nil, others, nil
}

func (r *restoring) alone(m *checkpoint.Manifest) *candidate {
	folder := r.store.Shard(r.shard.Index())
	return &candidate{name: fmt.Sprintf("checkpoint %v of this shard", m.Generation), own: m.Generation.String(), remedy: moveAway, parts: func(ctx context.Context) ([]*checkpoint.Checkpoint, error) {
		c, err := folder.Open(ctx, m.Generation)
		if err == nil && c.Manifest.Shard != r.shard.Index() {
			err = fmt.Errorf("%q has a checkpoint of shard %d, this is shard %d", folder, c.Manifest.Shard, r.shard.Index())
		}
		return []*checkpoint.Checkpoint{c}, err
	}}
}

func (r *restoring) together(set *checkpoint.Set, remedy string) *candidate {
	own := ""
	if r.shard.Index() < len(set.Shards) {
		own = set.Shards[r.shard.Index()].Generation.String()
	}
	return &candidate{name: set.String(), own: own, remedy: remedy, parts: func(ctx context.Context) ([]*checkpoint.Checkpoint, error) { return r.store.Open(ctx, set) }}
}
