package taskqueue

import (
	"reflect"
	"slices"
	"testing"
	"time"
)

// readyEffects ends a batch and returns its effects.
func readyEffects(q *Queue) []Effect { return q.Ready().Effects }

func TestReadyWithoutAChangeChangesNothing(t *testing.T) {
	q := New("job", [16]byte{}, 1, Options{})
	q.Ready()
	before := q.Commit()
	if r := q.Ready(); r.MustCommit || q.Commit() != before {
		t.Errorf("%+v, commit %d: expected none after %d", r, q.Commit(), before)
	}
}

// A repeated election of the saver changes nothing in the state. The answer still requires a fenced write.
func TestReadyOfAFinalAnswerMustBeCommitted(t *testing.T) {
	q := New("job", [16]byte{}, 1, Options{Passes: 1})
	a := q.Apply(1, &Join{ID: "a"})
	q.Apply(1, &Report{Digest: [32]byte{1}, Table: tableOf(t, 1)})
	task := q.Apply(1, &Request{Trainer: a.Ordinal, Incarnation: a.Incarnation, Seq: 1, Want: true})
	ask := &Request{Trainer: a.Ordinal, Incarnation: a.Incarnation, Seq: 2, Finished: []Result{{Token: task.Token}}, Want: true}
	q.Apply(1, ask)
	q.Ready()
	if a := q.Apply(1, ask); a.Kind != AnswerEnded || q.dirty || !q.Ready().MustCommit {
		t.Errorf("answer %+v of an unchanged state is not committed", a)
	}
}

func TestSessionsChangedFollowsTheEndOfASession(t *testing.T) {
	q := New("job", [16]byte{}, 1, Options{})
	a, b := q.Apply(1, &Join{ID: "a"}), q.Apply(1, &Join{ID: "b"})
	if got := readyEffects(q); len(got) > 0 {
		t.Errorf("effects of joins: %+v", got)
	}
	q.Apply(1, &Leave{Trainer: a.Ordinal, Incarnation: a.Incarnation})
	c := q.Apply(1, &Join{ID: "c"})
	got := readyEffects(q)
	if len(got) != 1 {
		t.Fatalf("effects %+v: expected one", got)
	}
	changed := got[0].(SessionsChanged)
	if want := []uint64{b.Incarnation, c.Incarnation}; !slices.Equal(changed.Live, want) || changed.Floor <= c.Incarnation {
		t.Errorf("%+v: expected %v and a floor above them", changed, want)
	}
	if next := q.Apply(1, &Join{ID: "d"}); next.Incarnation < changed.Floor {
		t.Errorf("a later session has incarnation %d, below the floor %d", next.Incarnation, changed.Floor)
	}
}

func TestOutstandingAfterRestoreEqualsReady(t *testing.T) {
	q := New("job", [16]byte{}, 1, Options{Passes: 1})
	q.Apply(1, &Report{Digest: [32]byte{1}, Table: tableOf(t, 0)}) // fails the job
	q.Apply(1, &Join{ID: "a"})
	left := q.Apply(1, &Join{ID: "b"})
	q.Apply(1, &Leave{Trainer: left.Ordinal, Incarnation: left.Incarnation})
	said := slices.DeleteFunc(readyEffects(q), func(e Effect) bool { return e.Key().Kind == OnPassClosed }) // the state has the pass
	restored, err := Restore(q.Snapshot(1, 2), q.encodedRoster(), []*Table{nil}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	byKind := func(list []Effect) map[EffectKey]Effect {
		m := map[EffectKey]Effect{}
		for _, e := range list {
			m[e.Key()] = e
		}
		return m
	}
	if got, want := byKind(restored.Outstanding()), byKind(said); !reflect.DeepEqual(got, want) || len(want) != 3 {
		t.Errorf("outstanding %+v: expected %+v", got, want)
	}
}

// An effect for a leader with cuts is raised when it becomes due. It stays outstanding for the next leader.
func TestEffectsOfCuts(t *testing.T) {
	q := New("job", [16]byte{}, 1, Options{ExplicitCommit: true, Cuts: true, MaxUncommitted: 4})
	q.Apply(1, &Report{Digest: [32]byte{1}, Table: tableOf(t, 8)})
	a := q.Apply(1, &Join{ID: "a"})
	q.Apply(1, &LastStep{Trainer: a.Ordinal, Incarnation: a.Incarnation})
	q.Ready()
	kinds := func(list []Effect) (kinds []EffectKind) {
		for _, e := range list {
			if k := e.Key().Kind; k == OnBarrierHeld || k == OnCheckpointDue || k == OnRollbackDue {
				kinds = append(kinds, k)
			}
		}
		return kinds
	}
	want := func(when string, raised, outstanding []EffectKind) {
		t.Helper()
		if got := kinds(readyEffects(q)); !slices.Equal(got, raised) {
			t.Errorf("%s: raised %v, expected %v", when, got, raised)
		}
		if got := kinds(q.Outstanding()); !slices.Equal(got, outstanding) {
			t.Errorf("%s: outstanding %v, expected %v", when, got, outstanding)
		}
	}
	seq := uint64(0)
	next := func(finished ...Result) Answer {
		seq++
		return q.Apply(1, &Request{Trainer: a.Ordinal, Incarnation: a.Incarnation, Seq: seq, Ack: seq, Finished: finished, Want: true, Epoch: 1})
	}
	task := next()
	for range 3 {
		want("little is finished", nil, nil)
		task = next(Result{Token: task.Token, Step: 1})
	}
	want("much waits for a commit", []EffectKind{OnCheckpointDue}, []EffectKind{OnCheckpointDue})
	q.Touch()
	want("it still does", nil, []EffectKind{OnCheckpointDue})
	q.Apply(1, &CutBegin{Step: 1})
	want("a cut is under way", nil, []EffectKind{OnBarrierHeld, OnCheckpointDue})
	q.Apply(1, &CutRelease{})
	q.Apply(1, &Leave{Trainer: a.Ordinal, Incarnation: a.Incarnation})
	want("a task is lost", []EffectKind{OnRollbackDue}, []EffectKind{OnRollbackDue})
	q.Apply(1, &Rollback{Generation: 1})
	want("rolled back", nil, nil)
}

// The stop of a former holder with an address follows the next dispatch of its task, and names its dispatch alone.
func TestStopDueFollowsTheNextDispatch(t *testing.T) {
	q := New("job", [16]byte{}, 1, Options{FirstTimeout: time.Second, TimeoutMin: time.Second})
	q.Apply(1, &Report{Digest: [32]byte{1}, Table: tableOf(t, 3)})
	q.Ready() // the report
	a := q.Apply(1, &Join{ID: "a", Control: "10.0.0.7:9000"})
	b := q.Apply(1, &Join{ID: "b"})
	ask := func(now Clock, of Answer, seq uint64, held ...Token) Answer {
		return q.Apply(now, &Request{Trainer: of.Ordinal, Incarnation: of.Incarnation, Seq: seq, Ack: seq, Held: held, Want: true})
	}
	slow := ask(1, a, 1)
	prefetched := ask(1, a, 2, slow.Token)
	q.Apply(2000, &Tick{})
	if got := readyEffects(q); len(got) > 0 {
		t.Errorf("timeout: expected no effect, found %+v", got)
	}
	if again := ask(2000, b, 1); again.Index != slow.Index {
		t.Fatalf("b: expected task %d, found %d", slow.Index, again.Index)
	}
	want := []Effect{StopDue{Trainer: a.Ordinal, ID: "a", Address: "10.0.0.7:9000", Stops: []Token{slow.Token}}}
	if got := readyEffects(q); !reflect.DeepEqual(got, want) {
		t.Errorf("next dispatch: expected %+v, found %+v", want, got)
	}
	q.Apply(2000, &Leave{a.Ordinal, a.Incarnation})
	q.Ready()
	q.Apply(4000, &Tick{})
	if ask(4000, b, 2); slices.ContainsFunc(readyEffects(q), func(e Effect) bool { due, ok := e.(StopDue); return ok && due.Trainer == a.Ordinal }) {
		t.Errorf("a trainer that left: expected no stop of %v", prefetched.Token)
	}
}

// The answer to a heartbeat asks for the progress on a running task when more than half of its time has passed, until the trainer reports it.
func TestAnswerToBeatAsksForProgress(t *testing.T) {
	q := New("job", [16]byte{}, 1, Options{FirstTimeout: 10 * time.Second, TimeoutMin: 10 * time.Second})
	q.Apply(1, &Report{Digest: [32]byte{1}, Table: tableOf(t, 3)})
	a := q.Apply(1, &Join{ID: "a"})
	running := q.Apply(1, &Request{Trainer: a.Ordinal, Incarnation: a.Incarnation, Seq: 1, Ack: 1, Want: true}).Token
	q.Apply(1, &Request{Trainer: a.Ordinal, Incarnation: a.Incarnation, Seq: 2, Ack: 2, Held: []Token{running}, Want: true}) // prefetched
	for _, beat := range []struct {
		at     Clock
		moving []Token
		want   []Token
	}{
		{4000, nil, nil}, {5500, nil, []Token{running}}, {6000, nil, []Token{running}}, {7000, []Token{running}, nil}, {11000, nil, nil}, {13000, nil, []Token{running}},
	} {
		found := q.Apply(beat.at, &Heartbeat{Trainer: a.Ordinal, Incarnation: a.Incarnation, Moving: beat.moving}).Late
		if !slices.Equal(found, beat.want) {
			t.Errorf("at %d: found %v, expected %v", beat.at, found, beat.want)
		}
	}
}
