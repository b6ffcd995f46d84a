package taskqueue

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Errors of Restore.
var (
	ErrDamaged = errors.New("the stored state is damaged")
	ErrNewer   = errors.New("the stored state is of a newer version")
)

// Restore rebuilds a queue from its stored state (of the newest format: see Upgrade), the roster (trainer id -> value) and the
// tables of its datasets. Volatile values start over. Every trainer counts as seen now. Every soft deadline is a whole timeout
// away, within the hard deadline. A connection that did not join is lost with the next tick, since it ended with the term that
// accepted it (but see Continue). Restore refuses a state that does not add up with ErrDamaged.
func Restore(s *Snapshot, roster map[string][]byte, tables []*Table, opt Options) (*Queue, error) {
	switch {
	case s.Format != Format:
		return nil, fmt.Errorf("%w: format %d: expected %d, after Upgrade", ErrDamaged, s.Format, Format)
	case len(s.JobID) != 16 || s.Mode > 1 || (s.Mode == 1) != (s.Exact != nil) || s.Commit > maxCommit:
		return nil, fmt.Errorf("%w: mode %d, job id of %d bytes, commit %d", ErrDamaged, s.Mode, len(s.JobID), s.Commit)
	case s.Clock < 1 || s.Epoch < 1 || s.NextOrdinal < 1 || s.Status > Failed:
		return nil, fmt.Errorf("%w: clock %d, epoch %d, next ordinal %d, status %d", ErrDamaged, s.Clock, s.Epoch, s.NextOrdinal, s.Status)
	case len(s.Sets) > MaxSets:
		return nil, fmt.Errorf("%w: %d datasets", ErrDamaged, len(s.Sets))
	case len(tables) != len(s.Sets):
		return nil, fmt.Errorf("%w: %d datasets with %d tables", ErrDamaged, len(s.Sets), len(tables))
	}
	q := empty(opt)
	q.cluster, q.job, q.epoch, q.commit, q.clock = s.Cluster, s.Job, s.Epoch, s.Commit, s.Clock
	q.nextOrdinal, q.status, q.reason, q.saver, q.saverUntil = s.NextOrdinal, s.Status, s.Reason, s.Saver, s.SaverUntil
	copy(q.jobID[:], s.JobID)
	q.restores, q.rates, q.rateNumber = s.Restores, s.Rates, s.RateNumber
	if err := checkRates(s.Rates, s.RateNumber); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if s.Exact != nil {
		var err error
		if q.explicit, err = s.Exact.restore(); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
		}
	}
	for id, value := range roster {
		if err := q.restoreTrainer(strings.TrimPrefix(id, RosterPrefix), value); err != nil {
			return nil, fmt.Errorf("%w: roster entry %q: %w", ErrDamaged, id, err)
		}
	}
	for i := range s.Sets {
		set, err := q.restoreSet(i, &s.Sets[i], tables[i])
		if err != nil {
			return nil, fmt.Errorf("%w: dataset %d: %w", ErrDamaged, i, err)
		}
		q.sets = append(q.sets, set)
	}
	for _, t := range q.trainers {
		if t.keeps = q.explicit != nil && t.gone && len(t.holds) > 0; t.keeps {
			q.explicit.lost++
		}
		if len(t.holds) > 0 && !t.running() {
			return nil, fmt.Errorf("%w: trainer %d prefetched a task and runs none", ErrDamaged, t.ordinal)
		}
		slices.SortStableFunc(t.holds, func(a, b *entry) int { // by dispatch
			x, y := a.holderOf(t), b.holderOf(t)
			//guard:prefetched-in-order-of-requests
			return cmp.Or(cmp.Compare(x.order(), y.order()), cmp.Compare(x.request, y.request))
		})
	}
	for _, set := range q.sets {
		q.advance(set)
	}
	return q, nil
}

// order sorts a trainer's holders: running ones by age, then the prefetched ones.
func (h *holder) order() Clock {
	if h.start == 0 {
		return math.MaxInt64
	}
	return h.start
}

// Continue takes the volatile values from the previous queue of the same term: the time, when its trainers were last seen, and
// their progress. A trainer whose session ended in the failed commit has the grace period to report again.
func (q *Queue) Continue(from *Queue) {
	q.clock = max(q.clock, from.clock)
	if q.sync != nil && from.sync != nil {
		q.sync.continues(from.sync)
	}
	for _, s := range q.sets {
		for _, e := range s.live {
			for k := range e.holderCount {
				if h := &e.holders[k]; h.start != 0 {
					q.extend(e, h)
				}
			}
		}
	}
	q.hung = from.hung
	for o, t := range q.trainers {
		switch old := from.trainers[o]; {
		case t.gone:
		case old != nil && old.incarnation == t.incarnation && !old.gone:
			t.seen, t.lostAt, t.progress = old.seen, old.lostAt, old.progress
			t.late = slices.DeleteFunc(old.late, func(l lateTask) bool { return q.holdsAttempt(t, l.token) })
		case t.plain: // its connection is gone
			t.seen, t.lostAt = q.clock, q.clock
		default:
			//guard:grace-after-refused-commit
			t.seen, t.lostAt = q.clock, q.clock.Add(q.opt.Grace)
		}
	}
}

// holdsAttempt reports whether t holds a task by this attempt.
func (q *Queue) holdsAttempt(t *trainer, tok Token) bool {
	return slices.ContainsFunc(t.holds, func(e *entry) bool { return q.token(e, e.holderOf(t).attempt) == tok })
}

func (q *Queue) restoreTrainer(id string, value []byte) error {
	t, err := decodeTrainer(id, value)
	switch {
	case err != nil:
		return err
	case t.ordinal == 0 || t.ordinal >= q.nextOrdinal || t.incarnation == 0:
		return fmt.Errorf("expected an ordinal from 1 to below %[2]d and an incarnation, found ordinal %[1]d, incarnation %[3]d", t.ordinal, q.nextOrdinal, t.incarnation)
	case q.trainers[t.ordinal] != nil || q.byID[id] != nil:
		return fmt.Errorf("the id or its ordinal %d exists twice", t.ordinal)
	}
	t.seen = q.clock
	if t.plain && !t.gone {
		//guard:plain-connection-without-grace
		t.lostAt = q.clock // its connection ended with the term that accepted it
	}
	q.trainers[t.ordinal], q.byID[id] = t, t
	return nil
}

func (q *Queue) restoreSet(id int, s *SetSnapshot, table *Table) (*set, error) {
	set := &set{
		id: id, name: s.Name, kind: s.Kind, passes: s.Passes, weight: s.Weight, credit: s.Credit, ended: s.Ended, reportID: s.ReportID, parts: s.Parts, chunksPerTask: s.ChunksPerTask, tasks: s.Tasks, chunks: s.Chunks,
		online: s.Online, closed: s.Closed, algorithm: s.Algorithm, seed: s.Seed, pass: s.Pass, cursor: s.Cursor, average: s.AverageMicros,
		table: table, byKey: map[liveKey]*entry{}, aside: map[int]*asideTask{},
	}
	spec := SetSpec{Name: s.Name, Kind: s.Kind, Passes: int(s.Passes), Weight: s.Weight, Online: s.Online}
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	switch {
	case s.Name == "" || s.Weight == 0 || q.named(s.Name) != nil:
		return nil, fmt.Errorf("name %q and weight %d: expected another name than the datasets before, and a weight", s.Name, s.Weight)
	case max(s.Credit, -s.Credit) > MaxSets*MaxWeight:
		return nil, fmt.Errorf("a credit of %d", s.Credit)
	case s.Ended && (len(s.Open) > 0 || s.Kind == Evaluation):
		return nil, fmt.Errorf("ended with %d open passes", len(s.Open))
	case s.Kind == Evaluation && len(s.Open) > 1:
		return nil, fmt.Errorf("%d open rounds", len(s.Open))
	case len(s.Digest) != len(set.digest) || len(s.PartsDigest) != len(set.partsDigest):
		return nil, errors.New("digest: found a wrong length")
	case !s.Closed && (!s.Online || s.Ended || s.Pass > 1), (s.Online || s.Algorithm == orderArrival) && s.ChunksPerTask != 1, s.Algorithm == orderArrival && !s.Online:
		return nil, fmt.Errorf("online %t, closed %t, ended %t in pass %d, order %d, %d chunks for each task", s.Online, s.Closed, s.Ended, s.Pass, s.Algorithm, s.ChunksPerTask)
	case s.Algorithm > orderArrival:
		return nil, fmt.Errorf("unknown order algorithm %d", s.Algorithm)
	case s.Tasks < 0 || s.Tasks > maxTasks || s.Cursor < 0 || s.Cursor > s.Tasks:
		return nil, fmt.Errorf("cursor %d of %d tasks", s.Cursor, s.Tasks)
	case table != nil && (table.Tasks() != s.Tasks || table.Chunks() != s.Chunks):
		return nil, fmt.Errorf("expected %d tasks of %d chunks, found %d of %d in the table", s.Tasks, s.Chunks, table.Tasks(), table.Chunks())
	case len(s.Open) > openPassesRolling:
		return nil, fmt.Errorf("%d open passes", len(s.Open))
	case s.AverageMicros < 0 || s.AverageMicros > math.MaxInt64/averageMicrosLimit:
		return nil, fmt.Errorf("an average task time of %d µs", s.AverageMicros)
	}
	copy(set.digest[:], s.Digest)
	copy(set.partsDigest[:], s.PartsDigest)
	for i, p := range s.Open {
		if newer := Pass(len(s.Open) - 1 - i); p.Pass == 0 || p.Pass != s.Pass-newer {
			return nil, fmt.Errorf("pass %d open in pass %d", p.Pass, s.Pass)
		}
		set.open = append(set.open, openPass{pass: p.Pass, counted: p.Counted, sum1: p.Sum1, sum2: p.Sum2})
	}
	if err := q.restoreLive(set, s.Live); err != nil {
		return nil, err
	}
	if err := set.restoreAside(s.Aside, q.explicit != nil); err != nil {
		return nil, err
	}
	switch {
	case q.explicit != nil:
		if len(s.Since) > 0 && s.Kind != Training {
			return nil, errors.New("since columns of a dataset that is not for training")
		}
		if err := set.restoreUncommitted(s.Since, q.explicit.committed); err != nil {
			return nil, err
		}
	case len(s.Since) > 0:
		return nil, errors.New("since columns without explicit commits")
	}
	return set, set.addsUp()
}

const maxTasks = 1 << 40

// averageMicrosLimit keeps the timeout rule's products within 64 bits.
const averageMicrosLimit = 1000 * timeoutFactor * hardDeadlineFactor

// addsUp checks that each dispatched task of an open pass is counted, live or set aside.
func (s *set) addsUp() error {
	for _, p := range s.open {
		o := s.orderOf(p.pass)
		aside := 0
		for _, a := range s.aside {
			if !a.missing(p.pass) {
				continue
			}
			position := o.position(a.index)
			if s.byKey[liveKey{p.pass, position}] != nil {
				return fmt.Errorf("task %d is live and set aside in pass %d", a.index, p.pass)
			}
			if position < s.dispatched(p.pass) {
				aside++
			}
		}
		//guard:restored-sums-checked
		if p.counted < 0 || p.counted+p.live+p.uncommitted+aside != s.dispatched(p.pass) {
			return fmt.Errorf("pass %d does not add up: %d tasks counted, %d live, %d not committed and %d set aside of %d dispatched", p.pass, p.counted, p.live, p.uncommitted, aside, s.dispatched(p.pass))
		}
	}
	return nil
}

// columns reads varints; bad is set when they end early or exceed their limit.
type columns struct {
	buf []byte
	bad bool
}

func (c *columns) uint(limit uint64) uint64 {
	v, n := binary.Uvarint(c.buf)
	if n <= 0 || v > limit {
		c.bad = true
		return 0
	}
	c.buf = c.buf[n:]
	return v
}

func (c *columns) int() int64 {
	v, n := binary.Varint(c.buf)
	if n <= 0 {
		c.bad = true
		return 0
	}
	c.buf = c.buf[n:]
	return v
}

func (q *Queue) restoreLive(s *set, data []byte) error {
	c := &columns{buf: data}
	n := c.uint(uint64(len(data) / liveEntryBytes))
	if c.bad {
		return fmt.Errorf("live columns of %d bytes name too many entries", len(data))
	}
	entries := make([]entry, n)
	baseLimit := uint64(0)
	if q.explicit != nil {
		baseLimit = math.MaxInt64 - 1
	}
	pass := Pass(0)
	for i := range entries {
		pass += Pass(c.uint(math.MaxUint32))
		entries[i] = entry{set: s, pass: pass, slot: i}
	}
	position := int64(0)
	for i := range entries {
		position += c.int()
		entries[i].position = int(position)
	}
	for i := range entries {
		e := &entries[i]
		e.base = int64(c.uint(baseLimit))
		e.failures = int(c.uint(math.MaxInt32))
		losses := c.uint(math.MaxInt32)
		e.losses, e.lost = int(losses>>1), losses&1 != 0
		//guard:attempts-restored
		e.next = Attempt(c.uint(math.MaxUint32-1)) + 1
		e.holderCount = int(c.uint(uint64(len(e.holders))))
	}
	if err := q.restoreHolders(entries, c); err != nil {
		return err
	}
	if c.bad || len(c.buf) > 0 {
		return errors.New("the live columns end early or late")
	}
	for i := range entries {
		e := &entries[i]
		p := s.openPass(e.pass)
		if p == nil || e.position < 0 || e.position >= s.dispatched(e.pass) || i > 0 && !entries[i-1].before(e) {
			return fmt.Errorf("live entry %d: pass %d, position %d", i, e.pass, e.position)
		}
		p.live++
		if e.holderCount == 0 {
			s.retry++
		}
		s.live = append(s.live, e)
		s.byKey[liveKey{e.pass, e.position}] = e
	}
	return nil
}

func (q *Queue) restoreHolders(entries []entry, c *columns) error {
	each := func(f func(e *entry, h *holder)) {
		for i := range entries {
			for k := range entries[i].holderCount {
				f(&entries[i], &entries[i].holders[k])
			}
		}
	}
	each(func(e *entry, h *holder) {
		o := Ordinal(c.uint(uint64(q.nextOrdinal - 1)))
		if c.bad = c.bad || o == 0; c.bad {
			return
		}
		h.trainer = q.holderByOrdinal(o)
		if &e.holders[0] != h && e.holders[0].trainer == h.trainer {
			c.bad = true
			return
		}
		h.trainer.holds = append(h.trainer.holds, e)
	})
	each(func(e *entry, h *holder) {
		h.attempt = e.next - Attempt(c.uint(uint64(e.next-1)))
		c.bad = c.bad || h.attempt == e.next || &e.holders[0] != h && e.holders[0].attempt == h.attempt
	})
	request := uint64(0)
	each(func(e *entry, h *holder) {
		request += uint64(c.int())
		//guard:request-number-restored
		h.request = request
	})
	each(func(e *entry, h *holder) {
		if age := c.uint(uint64(q.clock)); age > 0 {
			h.start = q.clock - Clock(age-1)
			//guard:deadline-extended-by-failover
			q.extend(e, h)
		}
	})
	if q.explicit != nil {
		each(func(_ *entry, h *holder) { h.mark = int64(c.uint(math.MaxInt64)) })
	}
	if c.bad {
		return errors.New("the columns of the holders end early, or have an impossible trainer or attempt")
	}
	return nil
}

// holderByOrdinal finds a trainer of the roster. A trainer whose key belongs to a later incarnation has lost its session: only
// time returns its tasks.
func (q *Queue) holderByOrdinal(o Ordinal) *trainer {
	if t := q.trainers[o]; t != nil {
		return t
	}
	t := &trainer{ordinal: o, id: fmt.Sprintf("#%d", o), gone: true}
	q.trainers[o] = t
	return t
}

func (s *set) restoreAside(data []byte, explicit bool) error {
	if len(data) == 0 {
		return nil
	}
	c := &columns{buf: data}
	n := int(c.uint(uint64(len(data))))
	index := 0
	for i := range n {
		delta := int(c.uint(uint64(s.tasks)))
		index += delta
		a := &asideTask{index: index, pass: Pass(c.uint(uint64(s.pass))), failures: int(c.uint(math.MaxInt32))}
		losses := c.uint(math.MaxInt32)
		a.losses, a.spared = int(losses>>1), losses&1 != 0
		a.next = Attempt(c.uint(math.MaxUint32-1)) + 1
		a.nextNewer = Attempt(c.uint(math.MaxUint32-1)) + 1
		if explicit {
			a.base, a.baseNewer = int64(c.uint(math.MaxInt64-1)), int64(c.uint(math.MaxInt64-1))
		}
		if c.bad || a.pass == 0 || i > 0 && delta == 0 || index >= s.tasks {
			return fmt.Errorf("the column of set-aside tasks ends early, or entry %d of %d (task %d of %d, pass %d) is impossible", i, n, index, s.tasks, a.pass)
		}
		s.aside[index] = a
	}
	index = 0
	for len(c.buf) > 0 {
		index += int(c.uint(uint64(s.tasks)))
		a := s.aside[index]
		if c.bad || a == nil || a.dropped {
			return fmt.Errorf("the column of set-aside tasks ends late, or task %d was dropped that is not set aside", index)
		}
		a.dropped = true
	}
	return nil
}
