package taskqueue

import (
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
