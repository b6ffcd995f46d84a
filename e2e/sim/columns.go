package sim

import (
	"encoding/binary"
	"errors"
	"slices"

	"trainmaster/taskqueue"
)

// stored is a decoded state. Its columns are decoded without the production code, according to
// docs/formats/task_queues.md.
type stored struct {
	*taskqueue.Snapshot
	set   *taskqueue.SetSnapshot // nil before the report
	live  []liveRow
	aside []asideRow
	since []sinceRow // uncommitted tasks, with explicit commits
}

type liveRow struct {
	pass     taskqueue.Pass
	position int
	base     int64
	failures int
	losses   int
	next     taskqueue.Attempt
	holders  []holderRow
}

type holderRow struct {
	trainer taskqueue.Ordinal
	attempt taskqueue.Attempt
	request uint64
	age     uint64 // time since its start plus 1; 0: not started
}

type asideRow struct {
	index    int
	pass     taskqueue.Pass
	failures int
	losses   int
	spared   bool
	bases    [2]int64 // in pass and in the next pass
}

type sinceRow struct {
	pass     taskqueue.Pass
	position int
	step     uint64
	base     int64
}

// missing reports whether a pass excludes the task.
func (a asideRow) missing(p taskqueue.Pass) bool {
	return a.pass <= p && !(a.spared && p == a.pass+1)
}

var errColumns = errors.New("columns have missing or extra bytes")

// reader reads varints. It sets bad if it reaches the end.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) uint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) int() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func readColumns(s *taskqueue.Snapshot) (*stored, error) {
	out := &stored{Snapshot: s}
	if len(s.Sets) == 0 {
		return out, nil
	}
	out.set = &s.Sets[0]
	r := &reader{b: out.set.Live}
	out.live = make([]liveRow, min(r.uint(), uint64(len(out.set.Live))))
	r.live(out.live, s.Mode == 1)
	bad := r.bad || len(r.b) > 0
	if len(out.set.Aside) > 0 {
		r = &reader{b: out.set.Aside}
		out.aside = r.aside(s.Mode == 1)
		bad = bad || r.bad || len(r.b) > 0
	}
	if len(out.set.Since) > 0 {
		r = &reader{b: out.set.Since}
		out.since = r.since()
		bad = bad || r.bad || len(r.b) > 0
	}
	if bad {
		return nil, errColumns
	}
	return out, nil
}

func (r *reader) live(rows []liveRow, explicit bool) {
	pass, position, request := uint64(0), int64(0), int64(0)
	for i := range rows {
		pass += r.uint()
		rows[i].pass = taskqueue.Pass(pass)
	}
	for i := range rows {
		position += r.int()
		rows[i].position = int(position)
	}
	for i := range rows {
		rows[i].base = int64(r.uint())
		rows[i].failures, rows[i].losses = int(r.uint()), int(r.uint()>>1)
		rows[i].next = taskqueue.Attempt(r.uint()) + 1
		rows[i].holders = make([]holderRow, min(r.uint(), 2))
	}
	each := func(f func(*liveRow, *holderRow)) {
		for i := range rows {
			for k := range rows[i].holders {
				f(&rows[i], &rows[i].holders[k])
			}
		}
	}
	each(func(_ *liveRow, h *holderRow) { h.trainer = taskqueue.Ordinal(r.uint()) })
	each(func(e *liveRow, h *holderRow) { h.attempt = e.next - taskqueue.Attempt(r.uint()) })
	each(func(_ *liveRow, h *holderRow) {
		request += r.int()
		h.request = uint64(request)
	})
	each(func(_ *liveRow, h *holderRow) { h.age = r.uint() })
	if explicit {
		each(func(*liveRow, *holderRow) { r.uint() }) // mark
	}
}

func (r *reader) since() []sinceRow {
	rows := make([]sinceRow, min(r.uint(), uint64(len(r.b))))
	pass, position, step := uint64(0), int64(0), int64(0)
	for i := range rows {
		pass += r.uint()
		rows[i].pass = taskqueue.Pass(pass)
	}
	for i := range rows {
		position += r.int()
		rows[i].position = int(position)
	}
	for i := range rows {
		step += r.int()
		rows[i].step = uint64(step)
	}
	for i := range rows {
		rows[i].base = int64(r.uint())
	}
	for range rows {
		r.uint() // mark
	}
	for range 2 * len(rows) {
		r.uint() // next attempts, trainers
	}
	return rows
}

func (r *reader) aside(explicit bool) []asideRow {
	rows := make([]asideRow, min(r.uint(), uint64(len(r.b))))
	index := 0
	for i := range rows {
		index += int(r.uint())
		row := &rows[i]
		row.index, row.pass, row.failures = index, taskqueue.Pass(r.uint()), int(r.uint())
		losses := r.uint()
		row.losses, row.spared = int(losses>>1), losses&1 != 0
		r.uint() // next attempts
		r.uint()
		if explicit {
			row.bases = [2]int64{int64(r.uint()), int64(r.uint())}
		}
	}
	return rows
}

// dispatched returns the end of the positions of an open pass that were dispatched or skipped.
func (s *stored) dispatched(p taskqueue.Pass) int {
	if p == s.set.Pass {
		return s.set.Cursor
	}
	return s.set.Tasks
}

func (s *stored) open(p taskqueue.Pass) bool {
	return s.set != nil && slices.ContainsFunc(s.set.Open, func(o taskqueue.OpenPass) bool { return o.Pass == p })
}
