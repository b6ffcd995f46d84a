package persist

import (
	"context"
	"fmt"
	"weak"

	"trainmaster/pserver/checkpoint"
	core "trainmaster/pserver/shard"
	"trainmaster/pserver/table"
)

// rowHistory decides whether a checkpoint has a full segment of a table or a delta. It belongs to a table of a view: after a
// rollback and after a migration there is no history, and the next checkpoint has a full segment. checkpoints.mu guards it.
//
// A checkpoint that is dropped or fails changes nothing: rows have the number of the cut before their last update, which no cut
// clears, so the next delta has all changes since the same full segment.
type rowHistory struct {
	full   *checkpoint.Segment // last full segment; nil: this process wrote none
	cut    *table.Cut          // its cut
	deltas int64               // bytes of all deltas since
	last   int64               // bytes of the last delta
}

// since returns the full cut that a delta at the cut of that number relates to, or nil for a full segment. The segment is full if
// the deltas since the last full segment, and another delta as large as the last one, would together be as large. This keeps the
// written bytes near their minimum, for any rate of changes, and a restart reads at most twice the bytes of the table.
func (r *rowHistory) since(number uint64) *table.Cut {
	if r.full == nil || number-r.cut.Number > table.MaxDistance || r.deltas+r.last >= r.full.Bytes() {
		return nil
	}
	//guard:delta-relates-to-written-segment
	return r.cut
}

// history returns the histories of the tables of a view.
func (c *Checkpoints) history(h *core.View) []rowHistory {
	//guard:rollback-clears-table-history
	if of := weak.Make(h); c.rowsOf != of { // weak, since it must not keep the parameters of a former view
		c.rowsOf, c.rows = of, make([]rowHistory, len(h.Tables()))
	}
	return c.rows
}

// wrote notes the segments of a checkpoint.
func (r *rowHistory) wrote(rows checkpoint.Rows, cut *table.Cut) {
	if rows.Delta == nil {
		*r = rowHistory{full: rows.Full, cut: cut}
		return
	}
	r.last = rows.Delta.Bytes()
	r.deltas += r.last
}

// removeSegments removes the segments that no checkpoint names, except the full segments that the next checkpoint can relate to.
func (c *Checkpoints) removeSegments(ctx context.Context) error {
	var used []string
	if h := c.shard.View(); h != nil {
		for _, r := range c.history(h) {
			if r.full != nil {
				used = append(used, r.full.Name)
			}
		}
	}
	return c.folder.PruneSegments(ctx, used)
}

// writeTables writes the files of all tables.
func (c *Checkpoints) writeTables(w *checkpoint.Writer, h *core.View, cut *core.Cut, meta map[string]string) error {
	for k, t := range h.Tables() {
		if err := c.writeTable(w, h, k, t, cut, meta); err != nil {
			return fmt.Errorf("table %q: %w", t.Config().Name, err)
		}
	}
	return nil
}

func (c *Checkpoints) writeTable(w *checkpoint.Writer, h *core.View, k int, t *table.Table, cut *core.Cut, meta map[string]string) error {
	sizes := checkpoint.TableSizes{Trainers: len(cut.Trainers)}
	for _, slot := range t.Held() {
		z := t.Sizes(slot, cut.Tables[k])
		sizes.Rows, sizes.Unchanged = sizes.Rows+z.Rows, sizes.Unchanged+z.Unchanged
	}
	var full *checkpoint.Segment
	if cut.Tables[k].Since != nil {
		full = c.history(h)[k].full
	}
	out, err := w.CreateTable(k, t.Config(), h.Model().Optimizer, sizes, full, meta)
	if err != nil {
		return err
	}
	m := &table.Image{}
	for _, slot := range t.Held() {
		m = t.CollectInto(slot, cut.Tables[k], m)
		if err := out.Add(slot, m); err != nil {
			return err
		}
	}
	c.folder.Points.Observe("rows written")
	return out.Finish()
}
