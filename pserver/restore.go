package pserver

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"

	"github.com/sirupsen/logrus"

	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/placement"
)

// restore fills the shard from the newest checkpoint in the folder that is whole
// and undamaged, and returns its generation; false when there is none. Damaged ones
// are passed over and said; when all are, that is an error: to start empty
// would hide the loss.
func (s *shard) restore(folder checkpoint.Folder) (checkpoint.Generation, bool, error) {
	list, err := folder.Generations()
	if err != nil {
		return checkpoint.Generation{}, false, err
	}
	var damaged []error
	for _, g := range list {
		if !folder.Whole(g) {
			continue // its writer was stopped: it never was a checkpoint
		}
		err := s.restoreFrom(folder, g)
		if err == nil {
			s.log.WithFields(logrus.Fields{"checkpoint": filepath.Join(folder.Path, g.String()), "version": s.version.Load(), "epoch": s.epoch}).Info("parameters restored")
			return g, true, nil
		}
		s.log.WithError(err).Error("checkpoint is damaged: trying the one before it")
		damaged = append(damaged, err)
	}
	if len(damaged) > 0 {
		return checkpoint.Generation{}, false, fmt.Errorf("no usable checkpoint in %q; to start without one, move the folder away: %w", folder.Path, errors.Join(damaged...))
	}
	return checkpoint.Generation{}, false, nil
}

// restoreFrom changes the shard only when everything could be read.
func (s *shard) restoreFrom(folder checkpoint.Folder, g checkpoint.Generation) error {
	c, err := folder.Open(g)
	if err != nil {
		return err
	}
	man := c.Manifest
	m, err := newModel(man.Optimizer, man.Mode == checkpoint.Sync, c.Share.Table)
	if err != nil {
		return err
	}
	if m, err = m.bounded(man.Staleness); err != nil {
		return err
	}
	if man.Shard != s.index {
		return fmt.Errorf("%q has a checkpoint of shard %d, this is shard %d", folder.Path, man.Shard, s.index)
	}
	if man.JobEpoch == 0 || man.JobEpoch > math.MaxUint16 {
		return fmt.Errorf("checkpoint %v has job epoch %d", g, man.JobEpoch)
	}
	h := s.newHolding(m)
	if err := h.load(c); err != nil {
		return fmt.Errorf("checkpoint %v: %w", g, err)
	}
	trainers, err := h.mark(c)
	if err != nil {
		return fmt.Errorf("checkpoint %v: %w", g, err)
	}
	s.holding.Store(h)
	s.trainers = trainers
	s.version.Store(man.Version)
	s.jobEpoch.Store(man.JobEpoch)
	s.restored = true
	s.ready.Store(true)
	return nil
}

// load takes parameters and state of the blocks that the shard holds.
func (h *holding) load(c *checkpoint.Checkpoint) error {
	if err := c.Weights(func(_ int, b placement.Block) []float32 {
		held := h.byID[b.ID]
		if held == nil {
			return nil
		}
		held.params = make([]float32, b.Len)
		held.state = make([]float32, len(c.Slots)*b.Len)
		return held.params
	}); err != nil {
		return err
	}
	for slot := range c.Slots {
		if err := c.Slot(slot, func(_ int, b placement.Block) []float32 {
			held := h.byID[b.ID]
			if held == nil {
				return nil
			}
			return held.state[slot*b.Len : (slot+1)*b.Len]
		}); err != nil {
			return err
		}
	}
	return nil
}

// mark takes the versions of the blocks that the shard holds, their numbers of updates if
// those are counted, and what was applied of each trainer.
func (h *holding) mark(c *checkpoint.Checkpoint) (map[uint32]*trainer, error) {
	marks, err := c.Marks()
	if err != nil {
		return nil, err
	}
	trainers := make(map[uint32]*trainer, len(marks.Trainers))
	for _, t := range marks.Trainers {
		trainers[t.Ordinal] = &trainer{ordinal: t.Ordinal, incarnation: t.Incarnation, applied: make([]uint64, len(h.blocks))}
	}
	for i, b := range c.Share.Blocks {
		held := h.byID[b.ID]
		if held == nil {
			continue
		}
		held.version = marks.Versions[i]
		if marks.Updates != nil {
			held.updates = marks.Updates[i]
		}
		for _, t := range marks.Trainers {
			trainers[t.Ordinal].applied[held.local] = t.Applied[i]
		}
	}
	return trainers, nil
}
