package persist

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/sirupsen/logrus"

	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/floats"
	core "trainmaster/pserver/shard"
)

// Checkpoints writes the shard's parts of checkpoint sets, at the cuts of the master, and loads them.
type Checkpoints struct {
	shard    *core.Shard
	store    checkpoint.Store
	folder   checkpoint.Folder // the shard's in store
	start    uint64
	job      JobState      // at the start
	cutLimit time.Duration // maximum duration of a cut; updates copy the state that they change until the cut ends
	log      *logrus.Entry

	superseded chan struct{} // closed when a later start owns the directory
	lastCut    atomic.Uint64 // greatest known number of a cut
	begun      chan struct{} // receives when the shard has its first parameters
	stopping   atomic.Bool   // trainers can push no more, and the last set is awaited

	mu       sync.Mutex // one checkpoint at a time
	sequence uint64
	restored uint64       // number of the set that the shard started from; 0: none
	term     uint64       // of the last master that took a cut
	open     *masterCut   // nil: none
	rows     []rowHistory // of the tables of rowsOf
	rowsOf   weak.Pointer[core.View]

	statusMu sync.Mutex
	newest   string
	failure  string
	latest   latestCut
}

// save writes the checkpoint of a cut while updates continue. Disk errors are logged and kept for Describe. After an error the
// older checkpoints stay.
func (c *Checkpoints) save(ctx context.Context, h *core.View, cut *core.Cut, set uint64) (checkpoint.Part, error) {
	began := time.Now()
	c.sequence++
	g := checkpoint.Generation{Start: c.start, Sequence: c.sequence}
	log := c.log.WithField("generation", g)
	throttle := newThrottle(ctx, h.Stored(), c.shard.Counters.Gradients)
	bytes, digest, err := c.write(ctx, g, h, cut, set, throttle)
	c.note(g, err)
	if err != nil {
		if errors.Is(err, checkpoint.ErrSuperseded) {
			close(c.superseded) // once: nothing is written after it
		}
		log.WithError(err).Error("checkpoint not written: previous checkpoint stays")
		return checkpoint.Part{}, err
	}
	log.WithFields(logrus.Fields{"set": set, "bytes": bytes, "took": time.Since(began).Round(time.Millisecond), "rested": throttle.slept.Round(time.Microsecond)}).Info("checkpoint written")
	part := checkpoint.Part{Shard: c.shard.Index(), Generation: g, SHA256: digest}
	return part, nil
}

func (c *Checkpoints) note(g checkpoint.Generation, err error) {
	c.statusMu.Lock()
	defer c.statusMu.Unlock()
	if c.failure = ""; err != nil {
		c.failure = err.Error()
		return
	}
	c.newest = g.String()
}

// Status returns the newest checkpoint, and the error of the last attempt.
func (c *Checkpoints) Status() (newest, failure string) {
	c.statusMu.Lock()
	defer c.statusMu.Unlock()
	return c.newest, c.failure
}

func (c *Checkpoints) write(ctx context.Context, g checkpoint.Generation, h *core.View, cut *core.Cut, set uint64, throttle *throttle) (bytes int64, digest string, err error) {
	w, err := c.folder.Begin(ctx, g)
	if err != nil {
		return 0, "", err
	}
	w.Worked = throttle.worked
	meta := map[string]string{"format": "pt", "shard": strconv.Itoa(c.shard.Index()), "version": strconv.FormatUint(cut.Version, 10)}
	if err = c.writeBlocks(ctx, w, h, cut, meta); err == nil {
		err = c.writeTables(w, h, cut, meta)
	}
	if err == nil {
		// An update that began before the first check can be part of the cut. The copies waited for that update, so its overflow is noted.
		//guard:checkpoint-checks-overflow
		err = c.shard.CheckOverflow()
	}
	if err == nil {
		m := checkpoint.NewManifest(h.Model().Optimizer, h.Model().Staleness, h.Model().Mode(), h.Model().Placement)
		m.Shard, m.Set, m.Version, m.JobEpoch = c.shard.Index(), set, cut.Version, cut.JobEpoch
		m.Job, m.JobID = c.job.Name, c.job.ID
		if cut.Retired.Job != "" {
			m.Retired = new(checkpoint.Retired(cut.Retired))
		}
		if bytes, digest, err = w.Finish(ctx, m); err == nil {
			for k := range m.Rows {
				c.history(h)[k].wrote(m.Rows[k], cut.Tables[k])
			}
		}
	}
	if err != nil {
		w.Abandon(ctx, err)
	}
	return bytes, digest, err
}

func (c *Checkpoints) writeBlocks(ctx context.Context, w *checkpoint.Writer, h *core.View, cut *core.Cut, meta map[string]string) error {
	share := checkpoint.ShareOf(h.Model().Placement, c.shard.Index())
	weights, err := w.Create(checkpoint.WeightsFile, share.Tensors(""), meta)
	if err != nil {
		return err
	}
	states, err := w.CreateSlots(share, h.Model().Rule.Slots(), meta)
	if err != nil {
		return err
	}
	c.folder.Points.Observe("headers written")
	marks := &checkpoint.Marks{}
	for _, t := range cut.Trainers {
		marks.Trainers = append(marks.Trainers, checkpoint.Trainer{Ordinal: t.Ordinal(), Incarnation: t.Incarnation()})
	}
	for _, b := range h.Blocks() {
		i := b.Collect(cut)
		_, err := weights.Write(floats.Bytes(i.Params))
		for slot := 0; err == nil && slot < len(i.State)/b.Len; slot++ {
			_, err = states[slot].Write(floats.Bytes(i.State[slot*b.Len : (slot+1)*b.Len]))
		}
		marks.Versions, marks.Updates = append(marks.Versions, i.Version), append(marks.Updates, i.Updates)
		for t, step := range i.Applied {
			marks.Trainers[t].Applied = append(marks.Trainers[t].Applied, step)
		}
		b.Recycle(i)
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return err
		}
		c.folder.Points.Observe("block written")
	}
	return w.Marks(marks, meta)
}
