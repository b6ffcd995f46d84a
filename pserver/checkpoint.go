package pserver

import (
	"strconv"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/wire"
)

// checkpoints writes the shard's checkpoints under one folder.
type checkpoints struct {
	shard  *shard
	folder checkpoint.Folder
	start  uint64
	keep   int
	log    *logrus.Entry

	mu       sync.Mutex // one at a time
	sequence uint64
	written  uint64 // changes() when the newest one was cut

	statusMu sync.Mutex
	newest   string
	failure  string
}

// changes counts what a checkpoint would have to keep.
func (s *shard) changes() uint64 {
	return s.counters.pushed.Load() + s.counters.committed.Load() + s.counters.adopted.Load() + 1
}

// save writes a checkpoint if anything changed since the last one. Updates go
// on meanwhile. Disk errors are logged and kept for Describe, and the older
// checkpoints stay as they are; [checkpoint.ErrSuperseded] is returned too.
func (c *checkpoints) save() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	changes := c.shard.changes()
	if changes == c.written {
		return nil
	}
	began := time.Now()
	c.sequence++
	g := checkpoint.Generation{Start: c.start, Sequence: c.sequence}
	bytes, err := c.write(g)
	c.note(g, err)
	if err != nil {
		c.log.WithError(err).WithField("generation", g).Error("checkpoint not written: the one before it stays, training goes on")
		return err
	}
	c.written = changes
	c.log.WithFields(logrus.Fields{"generation": g, "bytes": bytes, "took": time.Since(began).Round(time.Millisecond)}).Info("checkpoint written")
	if err := c.folder.Prune(g, c.keep); err != nil {
		c.log.WithError(err).Warn("older checkpoints not removed")
	}
	return nil
}

func (c *checkpoints) note(g checkpoint.Generation, err error) {
	c.statusMu.Lock()
	defer c.statusMu.Unlock()
	if c.failure = ""; err != nil {
		c.failure = err.Error()
		return
	}
	c.newest = g.String()
}

func (c *checkpoints) status() (newest, failure string) {
	c.statusMu.Lock()
	defer c.statusMu.Unlock()
	return c.newest, c.failure
}

func (c *checkpoints) write(g checkpoint.Generation) (bytes int64, err error) {
	w, err := c.folder.Begin(g)
	if err != nil {
		return 0, err
	}
	h := c.shard.holding.Load()
	cut := c.shard.startCut()
	defer c.shard.endCut(h)
	if err = c.writeBlocks(w, h, cut); err == nil {
		m := checkpoint.NewManifest(h.model.optimizer, h.model.staleness, modeName(h.model.sync), h.model.table)
		m.Shard, m.Version, m.JobEpoch = c.shard.index, cut.version, cut.jobEpoch
		bytes, _, err = w.Finish(m)
	}
	if err != nil {
		w.Abandon()
	}
	return bytes, err
}

// writeBlocks writes all files but the manifest.
func (c *checkpoints) writeBlocks(w *checkpoint.Writer, h *holding, cut *cut) error {
	meta := map[string]string{"format": "pt", "shard": strconv.Itoa(c.shard.index), "version": strconv.FormatUint(cut.version, 10)}
	share := checkpoint.ShareOf(h.model.table, c.shard.index)
	weights, err := w.Create(checkpoint.WeightsFile, share.Tensors(""), meta)
	if err != nil {
		return err
	}
	states, err := w.CreateSlots(share, h.model.rule.Slots(), meta)
	if err != nil {
		return err
	}
	c.did("headers written")
	marks := newMarks(h, cut)
	for _, b := range h.blocks {
		i := c.shard.collect(b, cut)
		if _, err := weights.Write(wire.FloatBytes(i.params)); err != nil {
			return err
		}
		for slot := range len(i.state) / b.Len {
			if _, err := states[slot].Write(wire.FloatBytes(i.state[slot*b.Len : (slot+1)*b.Len])); err != nil {
				return err
			}
		}
		setMarks(marks, b.local, i)
		c.shard.cuts.recycle(i)
		c.did("block written")
	}
	return w.Marks(marks, meta)
}

func (c *checkpoints) did(what string) {
	if c.folder.Step != nil {
		c.folder.Step(what)
	}
}

// newMarks makes room for the marks at a cut.
func newMarks(h *holding, c *cut) *checkpoint.Marks {
	m := &checkpoint.Marks{Versions: make([]uint64, len(h.blocks))}
	if !h.model.optimizer.Plain() {
		m.Updates = make([]uint64, len(h.blocks))
	}
	for _, t := range c.trainers {
		m.Trainers = append(m.Trainers, checkpoint.Trainer{Ordinal: t.ordinal, Incarnation: t.incarnation, Applied: make([]uint64, len(h.blocks))})
	}
	return m
}

func setMarks(m *checkpoint.Marks, local int, i *image) {
	m.Versions[local] = i.version
	if m.Updates != nil {
		m.Updates[local] = i.updates
	}
	for t, step := range i.applied {
		m.Trainers[t].Applied[local] = step
	}
}
