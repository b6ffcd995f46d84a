package taskqueue

import (
	"errors"
	"slices"
	"testing"
)

// A synchronous step is made without those who stand still for a cut, and with them once it is over.
func TestStepsWithoutWhoStandsStill(t *testing.T) {
	q := New("job", [16]byte{1}, 7, Options{ExplicitCommit: true, Cuts: true})
	q.Apply(1, &Report{Digest: [32]byte{9}, ReportID: "r", Table: tableOf(t, 4)})
	var joined []Answer
	for _, id := range []string{"a", "b"} {
		a := q.Apply(1, &Join{ID: id})
		joined = append(joined, a)
		q.Apply(1, &LastStep{a.Ordinal, a.Incarnation})
		q.Apply(1, &Request{Trainer: a.Ordinal, Incarnation: a.Incarnation, Seq: 1, Ack: 1, Want: true, Epoch: 1})
	}
	want := func(what string, expected ...Ordinal) {
		t.Helper()
		if got, ok := q.Contributors(); !ok || !slices.Equal(got, expected) {
			t.Errorf("%s: contributors %v, expected %v", what, got, expected)
		}
	}
	want("before", 1, 2)
	q.Apply(1, &CutBegin{Step: 1})
	want("begun", 1, 2)
	q.Apply(1, &StepFlushed{Trainer: 1, Incarnation: joined[0].Incarnation, Step: 1})
	want("a stands still", 2)
	q.Apply(1, &CutRelease{})
	want("released", 1, 2)
}

// What is taken down at a cut, while all stand still, becomes what the commit of the cut makes of it.
func TestCountCut(t *testing.T) {
	q := New("job", [16]byte{1}, 7, Options{ExplicitCommit: true, Cuts: true})
	q.Apply(1, &Report{Digest: [32]byte{9}, ReportID: "r", Table: tableOf(t, 4)})
	a := q.Apply(1, &Join{ID: "a"})
	q.Apply(1, &LastStep{a.Ordinal, a.Incarnation})
	first := q.Apply(1, &Request{Trainer: a.Ordinal, Incarnation: a.Incarnation, Seq: 1, Ack: 1, Want: true, Epoch: 1})
	second := q.Apply(2, &Request{Trainer: a.Ordinal, Incarnation: a.Incarnation, Seq: 2, Ack: 2, Want: true, Epoch: 1, Finished: []Result{{Token: first.Token, Step: 3}}})
	if second.Kind != AnswerTask {
		t.Fatalf("the second task: %+v", second)
	}
	q.Apply(3, &CutBegin{Step: 3})
	taken := func() *Queue {
		t.Helper()
		q.Flush()
		copied, err := Restore(q.Snapshot(1, 2), q.encodedRoster(), []*Table{nil}, BackupOptions)
		if err != nil {
			t.Fatal(err)
		}
		return copied
	}
	if err := taken().CountCut(3); !errors.Is(err, ErrDamaged) {
		t.Errorf("a trainer had not stopped: %v", err)
	}
	if flushed := q.Apply(4, &StepFlushed{Trainer: a.Ordinal, Incarnation: a.Incarnation, Step: 3, Positions: []TaskPosition{{second.Token, 1}}}); flushed.Err != nil {
		t.Fatal(flushed.Err)
	}
	if err := taken().CountCut(2); !errors.Is(err, ErrDamaged) {
		t.Errorf("of another set: %v", err)
	}
	at := taken()
	if err := at.CountCut(3); err != nil {
		t.Fatal(err)
	}
	if err := at.Revive("job", [16]byte{2}, 8); err != nil {
		t.Fatal(err)
	}
	v := at.Overview().Sets[0]
	if v.Done != 1 || v.Uncommitted != 0 || v.Retry != 1 || at.Steps().Step != 3 {
		t.Errorf("after the cut: %+v, step %d; expected one task counted, one to be given out again, step 3", v, at.Steps().Step)
	}
	if base := at.sets[0].live[0].base; base != 1 {
		t.Errorf("the open task goes on from record %d, expected 1", base)
	}
}
