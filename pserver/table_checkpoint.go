package pserver

import (
	"errors"
	"fmt"
	"slices"

	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/table"
)

// changesBetween is how many checkpoints with the changed rows only come between two with all rows.
const changesBetween = 9

// tableHistory decides which rows of tables a checkpoint must contain. An incremental checkpoint is based on the last full
// checkpoint and on no checkpoint between.
type tableHistory struct {
	last    *checkpoint.Base // the last checkpoint with all rows; nil: there is none that this process wrote
	changes int              // checkpoints with changes since
}

// base is what the next checkpoint is based on, nil if it is to have all rows.
func (t *tableHistory) base() *checkpoint.Base {
	if t.changes == changesBetween {
		return nil
	}
	return t.last
}

// wrote notes a checkpoint.
func (t *tableHistory) wrote(part checkpoint.Part, base *checkpoint.Base) {
	if base != nil {
		t.changes++
		return
	}
	t.last, t.changes = &checkpoint.Base{Generation: part.Generation, SHA256: part.SHA256}, 0
}

// rebase makes the next checkpoint a full one if the shard has other slots than before: changes of a slot are known only since
// the last full checkpoint with that slot.
func (c *checkpoints) rebase(before *holding) {
	if c.shard.holding.Load() != before {
		c.tables = tableHistory{}
	}
}

// startCut starts the cut of a checkpoint.
func (c *checkpoints) startCut(h *holding) *cut {
	if len(h.tables) == 0 {
		return c.shard.startCut(nil)
	}
	base := c.tables.base()
	if slices.ContainsFunc(h.tables, (*table.Table).LostTrack) {
		base = nil
	}
	//guard:dropped-cut-clears-base
	if base == nil {
		// This cut clears the marks of changed rows. If the cut is dropped or its write fails, the next checkpoint must be full, because
		// an incremental checkpoint would miss the changes before this cut.
		c.tables = tableHistory{}
	}
	return c.shard.startCut(base)
}

var errLostTrack = errors.New("too many dropped rows since the last full checkpoint: next checkpoint is full")

// writeTables writes the files of all tables.
func (c *checkpoints) writeTables(w *checkpoint.Writer, h *holding, cut *cut, meta map[string]string) error {
	for k, t := range h.tables {
		if err := c.writeTable(w, h, k, t, cut, meta); err != nil {
			return fmt.Errorf("table %q: %w", t.Config().Name, err)
		}
	}
	return nil
}

func (c *checkpoints) writeTable(w *checkpoint.Writer, h *holding, k int, t *table.Table, cut *cut, meta map[string]string) error {
	rows := 0
	for _, slot := range t.Held() {
		rows += t.Sizes(slot, cut.tables[k]).Rows
	}
	out, err := w.CreateTable(k, t.Config(), h.model.Optimizer, rows, len(cut.trainers), meta)
	if err != nil {
		return err
	}
	m := &table.Image{}
	for _, slot := range t.Held() {
		m = t.CollectInto(slot, cut.tables[k], m)
		if m.Lost { // just before the moment
			return errLostTrack
		}
		if err := out.Add(slot, m); err != nil {
			return err
		}
	}
	c.folder.Points.Observe("rows written")
	return out.Finish()
}

// loadTables takes the slots that this shard holds, and counts them by table. roster are the trainers of the
// checkpoint's marks.
func (h *holding) loadTables(c *checkpoint.Checkpoint, roster []*trainer, slots []int) error {
	for k, t := range h.tables {
		columns := make([]*table.Column, len(roster))
		for i, known := range roster {
			columns[i] = known.columns[k]
		}
		n, err := c.Table(k, t, columns)
		if err != nil {
			return err
		}
		slots[k] += n
	}
	return nil
}

// missingSlots says which table has slots that were in no checkpoint, nil if none.
func (h *holding) missingSlots(slots []int) error {
	for k, t := range h.tables {
		if slots[k] != len(t.Held()) {
			return fmt.Errorf("the checkpoints have %d of %d slots of table %q", slots[k], len(t.Held()), t.Config().Name)
		}
	}
	return nil
}
