package shard

import (
	"fmt"
	"math"
	"slices"

	"trainmaster/pserver/model"
	"trainmaster/pserver/partition"
	"trainmaster/pserver/table"
)

// Restoration is a state of a shard that is put together from what was stored. The shard changes with Install only.
type Restoration struct {
	shard    *Shard
	view     *View
	trainers map[uint32]*Trainer
	found    int // trainers in all checkpoints
	retired  Retirement
}

// Restore begins a restoration of the shard's part of a model.
func (s *Shard) Restore(m *model.Model) *Restoration {
	return &Restoration{shard: s, view: s.newView(m), trainers: map[uint32]*Trainer{}, retired: s.retired}
}

// Holds reports whether the block is of this shard.
func (r *Restoration) Holds(id uint64) bool { return r.view.byID[id] != nil }

// Put sets the content of a block of this shard, with the last applied steps of the roster.
func (r *Restoration) Put(id uint64, i *Image, roster []*partition.Trainer) error {
	b := r.view.byID[id]
	for k, t := range roster {
		b.SetStep(t, i.Applied[k])
	}
	return b.restore(i, r.view.model.Rule)
}

// Trainer finds or makes an incarnation of a trainer. The shard keeps the newest one: the applied steps of an older one are needed
// no longer.
func (r *Restoration) Trainer(ordinal uint32, incarnation uint64) *Trainer {
	known := r.trainers[ordinal]
	if known != nil && known.Incarnation() == incarnation {
		return known
	}
	fresh := &Trainer{Trainer: partition.NewTrainer(r.found, incarnation), ordinal: ordinal}
	r.found++
	if known == nil || known.Incarnation() < incarnation {
		r.trainers[ordinal] = fresh
	}
	return fresh
}

// Tables are the tables of the shard, for the rows.
func (r *Restoration) Tables() []*table.Table { return r.view.tables }

// CheckComplete returns an error if a block has no parameters.
func (r *Restoration) CheckComplete() error {
	if i := slices.IndexFunc(r.view.blocks, func(b *Block) bool { return b.params == nil }); i >= 0 {
		return fmt.Errorf("expected %s in a checkpoint of the set, found it in none", r.view.blocks[i].Name())
	}
	return nil
}

// Retire drops the trainers of a stored retirement, if it is newer than those before.
func (r *Restoration) Retire(to Retirement) {
	if to.after(&r.retired) {
		r.retired = to
	}
}

// ForgetTrainers drops all trainers: they were of another life of the job.
func (r *Restoration) ForgetTrainers() {
	for _, t := range r.trainers {
		fence(r.view, t)
	}
	r.trainers = map[uint32]*Trainer{}
}

// Install makes the restoration the state of the shard. The caller is inside Rollback or Exclusively, or nothing uses the shard yet.
func (r *Restoration) Install(version uint64, jobEpoch uint32) error {
	//guard:restored-epoch-fits-header
	if jobEpoch == 0 || jobEpoch > math.MaxUint16 {
		return fmt.Errorf("job epoch %d: expected 1 to %d", jobEpoch, math.MaxUint16)
	}
	if r.view.model.Sync {
		r.view.advanceTo(version)
	}
	s := r.shard
	s.view.Store(r.view)
	//guard:applied-pushes-restored
	s.trainers = r.trainers
	s.retired = r.retired
	s.dropLocked(func(*Trainer) {})
	s.version.Store(version)
	s.jobEpoch.Store(jobEpoch)
	s.ready.Store(true)
	return nil
}

// advanceTo gives all blocks one version. Of shards that were stopped one after the other the first may lack the last version: trainers
// would wait for it, and there may be no master that knows of it.
func (h *View) advanceTo(version uint64) {
	for _, b := range h.blocks {
		b.version = version
	}
}

// Rollback replaces the state in a new job epoch, while no trainer is connected. load restores the new state; without it the shard
// has no parameters. After an error of load the shard is not ready.
func (s *Shard) Rollback(epoch uint32, load func() error) error {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready.Store(false)
	s.rolledBack.Store(0)
	s.claim = claim{}
	s.overflow.Store(nil)
	s.stages.prune(math.MaxUint64, nil)
	if load == nil {
		s.view.Store(nil)
		s.trainers = map[uint32]*Trainer{}
		s.version.Store(0)
	} else if err := load(); err != nil {
		return err
	}
	s.jobEpoch.Store(epoch)
	s.rolledBack.Store(epoch)
	return nil
}

// Exclusively calls f while no commit, cut, migration or change of the trainers runs.
func (s *Shard) Exclusively(f func() error) error {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	return f()
}
