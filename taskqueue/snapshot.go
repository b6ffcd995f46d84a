package taskqueue

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Format is the version of Snapshot that this build writes.
const Format = 1

// Snapshot is the stored state of a queue: what stands, gob-encoded and gzipped, under
// /task_queues. Its size is O(pending): the order of a pass is computed, whatever lies
// before the cursor and is in no list is done. Live, Aside and Since are columns of
// varints; docs/formats/task_queues.md draws them.
type Snapshot struct {
	Format       int
	Cluster      uint64 // etcd cluster id
	JobID        []byte // 16 random bytes
	Job          string
	Mode         uint8 // 0: counted at the finish; 1: explicit commits
	Epoch        uint32
	Commit       uint64
	LockRevision int64
	Nonce        uint64
	Clock        Clock
	NextOrdinal  Ordinal
	Status       Status
	Reason       string
	Saver        Ordinal
	SaverUntil   Clock
	Sets         []SetSnapshot
}

// SetSnapshot is the state of one dataset.
type SetSnapshot struct {
	Kind          Kind
	Digest        []byte
	ReportID      string
	Parts         int
	PartsDigest   []byte
	ChunksPerTask int
	Chunks        int
	Tasks         int
	Algorithm     uint8
	Seed          uint64
	Closed        bool // no more files will be appended
	Pass          Pass
	Cursor        int
	Weight        int
	Credit        int
	AverageMicros int64
	Open          []OpenPass
	Live          []byte
	Aside         []byte
	Since         []byte
}

// OpenPass is the running count of one open pass.
type OpenPass struct {
	Pass       Pass
	Counted    int
	Sum1, Sum2 uint64
}

// Flushed is what a commit must write besides the state.
type Flushed struct {
	Writes  []Write
	Record  []byte // events, without their key
	Notices []Notice
}

// RecordKey is where the events of a commit stand.
func RecordKey(commit uint64) string { return fmt.Sprintf("/record/%016x", commit) }

// Flush gives the state its next commit number and hands over all that changed since
// the last Flush. The caller commits it with Snapshot, in one transaction.
func (q *Queue) Flush() Flushed {
	q.commit++
	f := Flushed{Record: q.record.take(), Notices: q.notices}
	for id, t := range q.roster {
		if t == nil {
			f.Writes = append(f.Writes, Write{Key: rosterKey(id), Delete: true})
			continue
		}
		t.stored = true
		f.Writes = append(f.Writes, Write{Key: rosterKey(id), Value: t.encode()})
	}
	for key, value := range q.asides {
		f.Writes = append(f.Writes, Write{Key: key, Value: value, Delete: value == nil})
	}
	slices.SortFunc(f.Writes, func(a, b Write) int { return strings.Compare(a.Key, b.Key) })
	clear(q.roster)
	clear(q.asides)
	q.notices, q.dirty, q.joins = nil, false, 0
	return f
}

// PendingWrites returns how many keys Flush would write besides the state and the record.
func (q *Queue) PendingWrites() int { return len(q.roster) + len(q.asides) }

// Snapshot returns the state. LockRevision and Nonce are the caller's.
func (q *Queue) Snapshot(lockRevision int64, nonce uint64) *Snapshot {
	s := &Snapshot{
		Format: Format, Cluster: q.cluster, JobID: q.jobID[:], Job: q.job, Epoch: q.epoch, Commit: q.commit,
		LockRevision: lockRevision, Nonce: nonce, Clock: q.clock, NextOrdinal: q.nextOrdinal,
		Status: q.status, Reason: q.reason, Saver: q.saver, SaverUntil: q.saverUntil,
		Sets: make([]SetSnapshot, len(q.sets)),
	}
	for i, set := range q.sets {
		set.compact()
		s.Sets[i] = SetSnapshot{
			Kind: set.kind, Digest: set.digest[:], ReportID: set.reportID, Parts: set.parts, PartsDigest: set.partsDigest[:],
			ChunksPerTask: set.chunksPerTask, Chunks: set.chunks, Tasks: set.tasks, Algorithm: set.algorithm, Seed: set.seed,
			Closed: true, Pass: set.pass, Cursor: set.cursor, Weight: 1, AverageMicros: set.average,
			Live: set.encodeLive(q.clock), Aside: set.encodeAside(),
		}
		for _, p := range set.open {
			s.Sets[i].Open = append(s.Sets[i].Open, OpenPass{p.pass, p.counted, p.sum1, p.sum2})
		}
	}
	return s
}

// encodeLive writes the live entries column by column: what varies little from entry to
// entry stands together, for gzip.
func (s *set) encodeLive(now Clock) []byte {
	b := make([]byte, 0, 16+12*len(s.live))
	b = binary.AppendUvarint(b, uint64(len(s.live)))
	var pass Pass
	for _, e := range s.live {
		b = binary.AppendUvarint(b, uint64(e.pass-pass))
		pass = e.pass
	}
	position := 0
	for _, e := range s.live {
		b = binary.AppendVarint(b, int64(e.position-position))
		position = e.position
	}
	for _, e := range s.live {
		b = binary.AppendUvarint(b, 0) // base record: always the first in this mode
		b = binary.AppendUvarint(b, uint64(e.failures))
		lost := uint64(0)
		if e.lost {
			lost = 1
		}
		b = binary.AppendUvarint(b, uint64(e.losses)<<1|lost)
		b = binary.AppendUvarint(b, uint64(e.next-1))
		b = append(b, uint8(e.held))
	}
	for _, e := range s.live {
		for _, h := range e.holders[:e.held] {
			b = binary.AppendUvarint(b, uint64(h.trainer.ordinal))
		}
	}
	for _, e := range s.live {
		for _, h := range e.holders[:e.held] {
			b = binary.AppendUvarint(b, uint64(e.next-h.attempt))
		}
	}
	var request uint64
	for _, e := range s.live {
		for _, h := range e.holders[:e.held] {
			b = binary.AppendVarint(b, int64(h.request-request))
			request = h.request
		}
	}
	for _, e := range s.live {
		for _, h := range e.holders[:e.held] {
			age := uint64(0) // prefetched
			if h.start != 0 {
				age = uint64(now-h.start) + 1
			}
			b = binary.AppendUvarint(b, age)
		}
	}
	return b
}

func (s *set) encodeAside() []byte {
	if len(s.aside) == 0 {
		return nil
	}
	b := binary.AppendUvarint(nil, uint64(len(s.aside)))
	index := 0
	for _, a := range s.sortedAside() {
		b = binary.AppendUvarint(b, uint64(a.index-index))
		index = a.index
		b = binary.AppendUvarint(b, uint64(a.pass))
		b = binary.AppendUvarint(b, uint64(a.failures))
		spared := uint64(0)
		if a.spared {
			spared = 1
		}
		b = binary.AppendUvarint(b, uint64(a.losses)<<1|spared)
		b = binary.AppendUvarint(b, uint64(a.next-1))
		b = binary.AppendUvarint(b, uint64(a.nextNewer-1))
	}
	return b
}

// Errors of Restore.
var (
	ErrDamaged = errors.New("the stored state is damaged")
	ErrNewer   = errors.New("the stored state is of a newer version")
	ErrForeign = errors.New("the stored state is of another store")
)

// Restore rebuilds a queue from its stored state, the roster (trainer id -> value) and
// the tables of its datasets. Volatile things start anew: every trainer is heard now,
// every soft deadline is a whole timeout away, within the hard one.
func Restore(s *Snapshot, roster map[string][]byte, tables []*Table, opt Options) (*Queue, error) {
	switch {
	case s.Format > Format:
		return nil, fmt.Errorf("%w: this master reads up to format %d, found format %d: start a newer master; nothing was changed", ErrNewer, Format, s.Format)
	case s.Format < 1 || len(s.JobID) != 16 || s.Mode != 0:
		return nil, fmt.Errorf("%w: format %d, mode %d, job id of %d bytes", ErrDamaged, s.Format, s.Mode, len(s.JobID))
	case len(tables) != len(s.Sets):
		return nil, fmt.Errorf("%w: %d datasets with %d tables", ErrDamaged, len(s.Sets), len(tables))
	}
	q := empty(opt)
	q.cluster, q.job, q.epoch, q.commit, q.clock = s.Cluster, s.Job, s.Epoch, s.Commit, s.Clock
	q.nextOrdinal, q.status, q.reason, q.saver, q.saverUntil = s.NextOrdinal, s.Status, s.Reason, s.Saver, s.SaverUntil
	copy(q.jobID[:], s.JobID)
	for id, value := range roster {
		t, err := decodeTrainer(strings.TrimPrefix(id, "/trainers/"), value)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		t.seen = q.clock
		if t.plain {
			t.lostAt = q.clock.Add(q.opt.Grace)
		}
		q.trainers[t.ordinal], q.byID[t.id] = t, t
	}
	for i := range s.Sets {
		set, err := q.restoreSet(i, &s.Sets[i], tables[i])
		if err != nil {
			return nil, fmt.Errorf("%w: dataset %d: %w", ErrDamaged, i, err)
		}
		q.sets = append(q.sets, set)
	}
	for _, set := range q.sets {
		q.advance(set)
	}
	return q, nil
}

func (q *Queue) restoreSet(id int, s *SetSnapshot, table *Table) (*set, error) {
	set := &set{
		id: id, kind: s.Kind, reportID: s.ReportID, parts: s.Parts, chunksPerTask: s.ChunksPerTask, tasks: s.Tasks, chunks: s.Chunks,
		algorithm: s.Algorithm, seed: s.Seed, pass: s.Pass, cursor: s.Cursor, average: s.AverageMicros,
		table: table, byKey: map[liveKey]*entry{}, aside: map[int]*asideTask{},
	}
	switch {
	case len(s.Digest) != len(set.digest) || len(s.PartsDigest) != len(set.partsDigest):
		return nil, errors.New("digests of a wrong length")
	case s.Algorithm > orderFeistel:
		return nil, fmt.Errorf("unknown order algorithm %d", s.Algorithm)
	case s.Tasks < 0 || s.Cursor < 0 || s.Cursor > s.Tasks:
		return nil, fmt.Errorf("cursor %d of %d tasks", s.Cursor, s.Tasks)
	case table != nil && (table.Tasks() != s.Tasks || table.Chunks() != s.Chunks):
		return nil, fmt.Errorf("expected %d tasks of %d chunks, found %d of %d in the table", s.Tasks, s.Chunks, table.Tasks(), table.Chunks())
	case len(s.Open) > openPassesRolling:
		return nil, fmt.Errorf("%d open passes", len(s.Open))
	}
	copy(set.digest[:], s.Digest)
	copy(set.partsDigest[:], s.PartsDigest)
	for _, p := range s.Open {
		if p.Pass == 0 || p.Pass > s.Pass || p.Pass+openPassesRolling <= s.Pass {
			return nil, fmt.Errorf("pass %d open in pass %d", p.Pass, s.Pass)
		}
		set.open = append(set.open, openPass{pass: p.Pass, counted: p.Counted, sum1: p.Sum1, sum2: p.Sum2})
	}
	if err := q.decodeLive(set, s.Live); err != nil {
		return nil, err
	}
	return set, set.decodeAside(s.Aside)
}

// columns reads varints; bad is set when they end early.
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

func (q *Queue) decodeLive(s *set, data []byte) error {
	c := &columns{buf: data}
	n := int(c.uint(uint64(len(data))))
	entries := make([]entry, n)
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
		c.uint(0)
		e.failures = int(c.uint(math.MaxInt32))
		losses := c.uint(math.MaxInt32)
		e.losses, e.lost = int(losses>>1), losses&1 != 0
		e.next = Attempt(c.uint(math.MaxUint32-1)) + 1
		e.held = int(c.uint(uint64(len(e.holders))))
	}
	q.decodeHolders(entries, c)
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
		if e.held == 0 {
			s.retry++
		}
		s.live = append(s.live, e)
		s.byKey[liveKey{e.pass, e.position}] = e
	}
	return nil
}

func (q *Queue) decodeHolders(entries []entry, c *columns) {
	each := func(f func(e *entry, h *holder)) {
		for i := range entries {
			for k := range entries[i].held {
				f(&entries[i], &entries[i].holders[k])
			}
		}
	}
	each(func(e *entry, h *holder) {
		h.trainer = q.holderByOrdinal(Ordinal(c.uint(math.MaxUint32)))
		h.trainer.holds = append(h.trainer.holds, e)
	})
	each(func(e *entry, h *holder) { h.attempt = e.next - Attempt(c.uint(uint64(e.next-1))) })
	request := uint64(0)
	each(func(e *entry, h *holder) {
		request += uint64(c.int())
		h.request = request
	})
	each(func(e *entry, h *holder) {
		if age := c.uint(math.MaxInt64); age > 0 {
			h.start = q.clock - Clock(age-1)
			q.extend(e.set, h)
		}
	})
}

// holderByOrdinal finds a trainer of the roster. One whose key is a later incarnation's
// has lost its session: only time returns its tasks.
func (q *Queue) holderByOrdinal(o Ordinal) *trainer {
	if t := q.trainers[o]; t != nil {
		return t
	}
	t := &trainer{ordinal: o, id: fmt.Sprintf("#%d", o), gone: true}
	q.trainers[o] = t
	return t
}

func (s *set) decodeAside(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	c := &columns{buf: data}
	n := int(c.uint(uint64(len(data))))
	index := 0
	for range n {
		index += int(c.uint(uint64(s.tasks)))
		a := &asideTask{index: index, pass: Pass(c.uint(uint64(s.pass))), failures: int(c.uint(math.MaxInt32))}
		losses := c.uint(math.MaxInt32)
		a.losses, a.spared = int(losses>>1), losses&1 != 0
		a.next = Attempt(c.uint(math.MaxUint32-1)) + 1
		a.nextNewer = Attempt(c.uint(math.MaxUint32-1)) + 1
		if c.bad || index >= s.tasks {
			return fmt.Errorf("the column of set-aside tasks ends early or names task %d of %d", index, s.tasks)
		}
		s.aside[index] = a
	}
	if len(c.buf) > 0 {
		return errors.New("the column of set-aside tasks ends late")
	}
	return nil
}
