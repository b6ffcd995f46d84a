package taskqueue

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// ring is a job of explicit commits as its trainers see it: a model that contains records of tasks, each in one step,
// and checkpoints of that model. The tests compare the counts and bases of the queue with the checkpoint of the
// committed step.
type ring struct {
	*rapid.T
	q       *Queue
	opt     Options
	table   *Table
	stored  []byte
	roster  map[string][]byte
	ledger  *Verifier
	now     Clock
	members []*member
	sent    []sentEvent // for late copies

	step       uint64
	model      map[trained]int
	saved      map[uint64]map[trained]int
	round      uint64
	generation uint64
	committed  uint64
	since      map[liveKey]uint64 // position -> step of its last record
	done       map[liveKey]bool
}

// trained is one record of a task in a pass.
type trained struct {
	liveKey
	record int64
}

type member struct {
	id          string
	ordinal     Ordinal
	incarnation uint64
	epoch       uint32
	seq         uint64
	works       []*work // held, or finished since the last flush
}

// work is the progress of a member on a task: after steps[i] it had used records[i].
type work struct {
	token    Token
	used     int64
	steps    []uint64
	records  []int64
	finished bool
}

// sentEvent is an event with the generation of the ring that sent it.
type sentEvent struct {
	ev         Event
	generation uint64
}

const recordsOfTask = 10 // as tableOf makes them

func newRing(t *rapid.T) *ring {
	opt := Options{
		Passes: rapid.IntRange(1, 3).Draw(t, "passes"), Rolling: rapid.Bool().Draw(t, "rolling"), MaxFailures: 1000, ExplicitCommit: true,
		MaxUncommitted: rapid.SampledFrom([]int{3, 8, 20_000}).Draw(t, "max uncommitted"), FirstTimeout: 20 * time.Second, TimeoutMin: 10 * time.Second,
	}
	r := &ring{
		T: t, opt: opt, table: tableOf(t, rapid.IntRange(1, 12).Draw(t, "tasks")), roster: map[string][]byte{}, ledger: NewVerifier(), now: 1,
		q: New("job", [16]byte{1}, 7, opt), model: map[trained]int{}, saved: map[uint64]map[trained]int{0: {}}, since: map[liveKey]uint64{}, done: map[liveKey]bool{},
	}
	r.q.Apply(1, &Report{SetSpec: SetSpec{Shuffle: rapid.Bool().Draw(t, "shuffle"), Seed: 42}, Digest: [32]byte{9}, ReportID: "r", Table: r.table})
	r.commit()
	return r
}

func TestExactQueueAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRing(t)
		t.Repeat(map[string]func(*rapid.T){
			"":            func(*rapid.T) { r.check() },
			"join":        r.join,
			"ask":         r.ask,
			"ask more":    r.ask,
			"train":       r.train,
			"train more":  r.train,
			"train on":    r.train,
			"flush":       r.flush,
			"flush too":   r.flush,
			"flush all":   r.flushAll,
			"commit step": r.commitStep,
			"lose":        r.lose,
			"pass time":   r.passTime,
			"roll back":   r.rollBack,
			"late copy":   r.late,
			"fail-over":   func(*rapid.T) { r.restart() },
		})
	})
}

// apply applies an event to the queue and commits. The store refuses some commits first; the ring then sends the
// event again.
func (r *ring) apply(ev Event) Answer {
	if rapid.IntRange(0, 9).Draw(r.T, "refused") == 0 {
		r.q.Apply(r.now, ev)
		before := r.q
		r.restart()
		r.q.Continue(before)
	}
	a := r.q.Apply(r.now, ev)
	r.sent = append(r.sent, sentEvent{ev, r.generation})
	r.commit()
	return a
}

func (r *ring) commit() {
	r.q.Touch()
	f := r.q.Ready()
	s := r.q.Snapshot(3, 4)
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(s); err != nil {
		r.Fatalf("encode: %v", err)
	}
	r.stored = b.Bytes()
	for _, w := range f.Writes {
		if id := w.Key[len(RosterPrefix):]; w.Delete {
			delete(r.roster, id)
		} else {
			r.roster[id] = w.Value
		}
	}
	if err := r.ledger.Add(r.q.Commit(), f.Entries); err != nil {
		r.Fatalf("ledger: %v", err)
	}
	if err := r.ledger.CrossCheck(s); err != nil {
		r.Fatalf("ledger against state: %v", err)
	}
}

func (r *ring) restart() {
	var s Snapshot
	if err := gob.NewDecoder(bytes.NewReader(r.stored)).Decode(&s); err != nil {
		r.Fatalf("decode: %v", err)
	}
	q, err := Restore(&s, r.roster, []*Table{r.table}, r.opt)
	if err != nil {
		r.Fatalf("restore: %v", err)
	}
	r.q = q
}

func (r *ring) join(t *rapid.T) {
	id := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "id")
	r.members = slices.DeleteFunc(r.members, func(m *member) bool { return m.id == id })
	a := r.apply(&Join{ID: id})
	place := r.apply(&LastStep{Trainer: a.Ordinal, Incarnation: a.Incarnation}).Place
	r.members = append(r.members, &member{id: id, ordinal: a.Ordinal, incarnation: a.Incarnation, epoch: place.Epoch})
}

func (r *ring) member(t *rapid.T) *member {
	if len(r.members) == 0 {
		r.join(t)
	}
	return rapid.SampledFrom(r.members).Draw(t, "member")
}

// send sends a request and checks that its finishes are accepted.
func (r *ring) send(m *member, want bool, finished ...Result) {
	m.seq++
	ev := &Request{Trainer: m.ordinal, Incarnation: m.incarnation, Seq: m.seq, Ack: m.seq, Finished: finished, Want: want, Epoch: m.epoch}
	for _, w := range m.works {
		if !w.finished {
			ev.Held = append(ev.Held, w.token)
		}
	}
	a := r.apply(ev)
	for i, f := range finished {
		if a.Finishes[i] == Counted {
			r.since[liveKey{f.Token.Pass, f.Token.Position}] = max(f.Step, r.committed+1)
		}
	}
	switch a.Kind {
	case AnswerTask:
		m.works = append(m.works, &work{token: a.Token, used: a.Base})
	case AnswerWait:
		if a.WaitFor == WaitCommit && len(r.since) == 0 {
			r.Fatal("expected no wait for a commit: no task is uncommitted")
		}
	}
}

func (r *ring) ask(t *rapid.T) {
	if m := r.member(t); len(m.held()) < maxHeldJoined {
		r.send(m, true)
	}
}

func (m *member) held() []*work {
	return slices.DeleteFunc(slices.Clone(m.works), func(w *work) bool { return w.finished })
}

// train applies some records in one step.
func (r *ring) train(t *rapid.T) {
	m := r.member(t)
	held := m.held()
	if len(held) == 0 || m.epoch != r.q.epoch {
		return
	}
	w := held[0]
	r.step++
	for range rapid.Int64Range(0, recordsOfTask).Draw(t, "records") {
		if w.used < recordsOfTask {
			r.model[trained{liveKey{w.token.Pass, w.token.Position}, w.used}]++
			w.used++
		}
	}
	w.steps, w.records = append(w.steps, r.step), append(w.records, w.used)
	if w.used == recordsOfTask {
		w.finished = true
		r.send(m, rapid.Bool().Draw(t, "want"), Result{Token: w.token, Step: r.step})
	}
}

// at returns the number of records of the task in steps up to s. ok is false if no record is in them.
func (w *work) at(s uint64) (records int64, ok bool) {
	for i, step := range w.steps {
		if step <= s {
			records, ok = w.records[i], true
		}
	}
	return records, ok
}

// flush reports that a member flushed the step of the current round. Without a round it begins one.
func (r *ring) flush(t *rapid.T) { r.flushOf(r.member(t)) }

func (r *ring) flushAll(*rapid.T) {
	for _, m := range slices.Clone(r.members) {
		r.flushOf(m)
	}
}

func (r *ring) flushOf(m *member) {
	if r.round == 0 && r.step > r.committed {
		r.round = r.step
		r.saved[r.round] = maps.Clone(r.model)
	}
	if r.round == 0 || m.epoch != r.q.epoch {
		return
	}
	ev := &StepFlushed{Trainer: m.ordinal, Incarnation: m.incarnation, Generation: r.generation, Step: r.round}
	for _, w := range m.works {
		if n, ok := w.at(r.round); ok && !(w.finished && n == recordsOfTask) {
			ev.Positions = append(ev.Positions, TaskPosition{w.token, n})
		}
	}
	if a := r.apply(ev); a.Err != nil {
		r.Fatalf("flush of step %d: %v", r.round, a.Err)
	}
}

func (r *ring) commitStep(t *rapid.T) {
	if r.round == 0 {
		return
	}
	m := r.member(t)
	a := r.apply(&StepCommit{Trainer: m.ordinal, Incarnation: m.incarnation, Generation: r.generation, Step: r.round})
	if a.Kind != AnswerStep {
		return // a member has not flushed, or is lost
	}
	if a.Place.Step != r.round {
		r.Fatalf("committed step %d, expected %d", a.Place.Step, r.round)
	}
	for k, step := range r.since {
		if step <= r.round {
			delete(r.since, k)
			r.done[k] = true
		}
	}
	for _, m := range r.members {
		m.works = slices.DeleteFunc(m.works, func(w *work) bool { n, _ := w.at(r.round); return w.finished && n == recordsOfTask })
	}
	r.committed, r.round = r.round, 0
}

func (r *ring) lose(t *rapid.T) {
	m := r.member(t)
	r.members = slices.DeleteFunc(r.members, func(o *member) bool { return o == m })
	var ev Event = &Leave{m.ordinal, m.incarnation}
	if rapid.Bool().Draw(t, "without leaving") {
		ev = &Disconnected{m.ordinal, m.incarnation}
	}
	r.apply(ev)
}

func (r *ring) passTime(t *rapid.T) {
	r.now += Clock(rapid.SampledFrom([]int{1, 1000, 6000, 30_000}).Draw(t, "ms"))
	for _, m := range r.members {
		if rapid.IntRange(0, 9).Draw(t, "silent") > 0 {
			r.apply(&Heartbeat{Trainer: m.ordinal, Incarnation: m.incarnation})
		}
	}
	r.apply(&Tick{})
	r.members = slices.DeleteFunc(r.members, func(m *member) bool { return !r.q.Known(m.ordinal, m.incarnation) })
}

// rollBack forms a new ring from the last committed step.
func (r *ring) rollBack(t *rapid.T) {
	m := r.member(t)
	place := r.apply(&LastStep{Trainer: m.ordinal, Incarnation: m.incarnation}).Place
	if place.Step != r.committed || r.q.status == Ended {
		if place.Step != r.committed {
			r.Fatalf("the step to load is %d, expected %d", place.Step, r.committed)
		}
		return
	}
	if r.generation > 0 && place.Step != r.q.explicit.rolledTo {
		if a := r.apply(&Rollback{Trainer: m.ordinal, Incarnation: m.incarnation, Generation: r.generation, Step: place.Step}); !errors.Is(a.Err, ErrOtherStep) {
			r.Fatalf("generation %d began from step %d and again from %d: %+v", r.generation, r.q.explicit.rolledTo, place.Step, a)
		}
	}
	generation := r.generation + uint64(rapid.IntRange(1, 3).Draw(t, "generation by"))
	a := r.apply(&Rollback{Trainer: m.ordinal, Incarnation: m.incarnation, Generation: generation, Step: place.Step})
	again := r.apply(&Rollback{Trainer: m.ordinal, Incarnation: m.incarnation, Generation: generation, Step: place.Step})
	other := r.apply(&Rollback{Trainer: m.ordinal, Incarnation: m.incarnation, Generation: generation, Step: place.Step + 1})
	if a.Kind != AnswerStep || again.Place != a.Place || !errors.Is(other.Err, ErrOtherStep) {
		r.Fatalf("rollback: %+v, again %+v, to another step %+v", a, again, other)
	}
	r.generation, r.step, r.round = generation, place.Step, 0
	r.model = maps.Clone(r.saved[place.Step])
	clear(r.since)
	for _, m := range r.members {
		m.works, m.epoch = nil, r.apply(&LastStep{Trainer: m.ordinal, Incarnation: m.incarnation}).Place.Epoch
	}
}

// late sends a copy of an earlier event.
func (r *ring) late(t *rapid.T) {
	if len(r.sent) == 0 {
		return
	}
	late := rapid.SampledFrom(r.sent).Draw(t, "sent")
	switch ev := late.ev.(type) {
	case *Request:
		copied := *ev
		copied.Want = false
		for i, status := range r.q.Apply(r.now, &copied).Finishes {
			if status == Counted {
				if late.generation != r.generation {
					r.Fatalf("%v of generation %d counts in generation %d", ev.Finished[i].Token, late.generation, r.generation)
				}
				r.since[liveKey{ev.Finished[i].Token.Pass, ev.Finished[i].Token.Position}] = max(ev.Finished[i].Step, r.committed+1)
			}
		}
		r.commit()
	case *StepFlushed, *StepCommit, *Rollback:
		before := r.q.explicit.committed
		if r.q.Apply(r.now, ev); r.q.explicit.committed != before {
			r.Fatalf("late event %+v: expected a refusal", ev)
		}
		r.commit()
	}
}

// check compares the queue with the expected counts and with the model of the committed step.
func (r *ring) check() {
	s := r.q.sets[0]
	got := map[liveKey]uint64{}
	for _, a := range s.uncommitted {
		got[a.liveKey] = a.step
	}
	if !maps.Equal(got, r.since) {
		r.Fatalf("wait for a commit: %v, expected %v", got, r.since)
	}
	if n := len(s.uncommitted) + len(s.byKey); n > r.opt.MaxUncommitted {
		r.Fatalf("expected at most %[2]d live and uncommitted tasks, found %[1]d", n, r.opt.MaxUncommitted)
	}
	if r.q.explicit.committed != r.committed {
		r.Fatalf("step %d is committed, expected %d", r.q.explicit.committed, r.committed)
	}
	counted := map[trained]int{}
	has := func(k liveKey, records int64) {
		for n := range records {
			counted[trained{k, n}] = 1
		}
	}
	for k := range r.done {
		has(k, recordsOfTask)
	}
	for _, a := range s.uncommitted {
		has(a.liveKey, a.base)
	}
	for k, e := range s.byKey {
		if r.done[k] {
			r.Fatalf("task %v: expected no live entry after its commit", k)
		}
		has(k, e.base)
	}
	if model := r.saved[r.committed]; !maps.Equal(counted, model) {
		r.Fatalf("step %d: the counted records differ from the records of the model:\n got      %v\n expected %v", r.committed, sortedRecords(counted), sortedRecords(model))
	}
	for _, p := range s.open {
		n := 0
		for k := range r.done {
			if k.pass == p.pass {
				n++
			}
		}
		if n != p.counted {
			r.Fatalf("pass %d: %d counted, expected %d", p.pass, p.counted, n)
		}
	}
	if want := r.opt.Passes * s.tasks; (r.q.status == Ended) != (len(r.done) == want) {
		r.Fatalf("%v with %d of %d tasks committed", r.q.status, len(r.done), want)
	}
}

func sortedRecords(m map[trained]int) []string {
	var list []string
	for k, n := range m {
		list = append(list, fmt.Sprintf("%d/%d:%d x%d", k.pass, k.position, k.record, n))
	}
	slices.Sort(list)
	return list
}
