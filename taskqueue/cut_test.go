package taskqueue

import (
	"errors"
	"slices"
	"testing"
	"time"
)

// Between the beginning of a cut and its release no step completes, and a trainer that waits for a step must flush
// the cut.
func TestNoStepCompletesDuringCut(t *testing.T) {
	q, joined := cutJob(t)
	want := func(what string, ok bool, stopping ...Ordinal) {
		t.Helper()
		list, got := q.Contributors()
		if got != ok || !slices.Equal(list, []Ordinal{1, 2}) {
			t.Errorf("%s: contributors %v, %t; expected [1 2], %t", what, list, got, ok)
		}
		for _, o := range []Ordinal{1, 2} {
			if q.isStopping(o) != slices.Contains(stopping, o) {
				t.Errorf("%s: the cut waits for trainer %d: %t", what, o, q.isStopping(o))
			}
		}
	}
	want("before", true)
	q.Apply(1, &CutBegin{Step: 1})
	want("begun", false, 1, 2)
	q.Apply(1, &StepFlushed{Trainer: 1, Incarnation: joined[0].Incarnation, Step: 1})
	want("a has flushed", false, 2)
	q.Apply(1, &CutRelease{})
	want("released", true)
}

// CountCut lists the open tasks at a cut. The commit of the cut leaves the queue with exactly that state.
func TestCountCut(t *testing.T) {
	q := New("job", [16]byte{1}, 7, Options{ExplicitCommit: true, Cuts: true})
	q.Apply(1, &Report{Digest: [32]byte{9}, ReportID: "r", Table: tableOf(t, 4)})
	a := q.Apply(1, &Join{ID: "a"})
	q.Apply(1, &LastStep{Trainer: a.Ordinal, Incarnation: a.Incarnation, Epoch: 1})
	first := q.Apply(1, &Request{Trainer: a.Ordinal, Incarnation: a.Incarnation, Seq: 1, Ack: 1, Want: true, Epoch: 1})
	second := q.Apply(2, &Request{Trainer: a.Ordinal, Incarnation: a.Incarnation, Seq: 2, Ack: 2, Want: true, Epoch: 1, Finished: []Result{{Token: first.Token, Step: 3}}})
	if second.Kind != AnswerTask {
		t.Fatalf("second task: got %+v", second)
	}
	q.Apply(3, &CutBegin{Step: 3})
	taken := func() *Queue {
		t.Helper()
		q.Ready()
		copied, err := Restore(q.Snapshot(1, 2), q.encodedRoster(), []*Table{nil}, BackupOptions)
		if err != nil {
			t.Fatal(err)
		}
		return copied
	}
	if err := taken().CountCut(3); !errors.Is(err, ErrDamaged) {
		t.Errorf("cut with a trainer that has not stopped: found error %v", err)
	}
	if flushed := q.Apply(4, &StepFlushed{Trainer: a.Ordinal, Incarnation: a.Incarnation, Step: 3, Positions: []TaskPosition{{second.Token, 1}}}); flushed.Err != nil {
		t.Fatal(flushed.Err)
	}
	if err := taken().CountCut(2); !errors.Is(err, ErrDamaged) {
		t.Errorf("other set: found error %v", err)
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
		t.Errorf("after the cut: %+v, step %d; expected one task counted, one to dispatch again, step 3", v, at.Steps().Step)
	}
	if base := at.sets[0].live[0].base; base != 1 {
		t.Errorf("base of the open task: expected 1, found %d", base)
	}
}

// cutJob returns a queue with cuts, two tasks and two members that hold one task each.
func cutJob(t *testing.T) (q *Queue, joined []Answer) {
	t.Helper()
	return cutJobOf(t, Options{ExplicitCommit: true, Cuts: true})
}

func cutJobOf(t *testing.T, opt Options) (q *Queue, joined []Answer) {
	t.Helper()
	q = New("job", [16]byte{1}, 7, opt)
	q.Apply(1, &Report{Digest: [32]byte{9}, ReportID: "r", Table: tableOf(t, 4)})
	for _, id := range []string{"a", "b"} {
		a := q.Apply(1, &Join{ID: id})
		joined = append(joined, a)
		q.Apply(1, &LastStep{Trainer: a.Ordinal, Incarnation: a.Incarnation, Epoch: 1})
		q.Apply(1, &Request{Trainer: a.Ordinal, Incarnation: a.Incarnation, Seq: 1, Ack: 1, Want: true, Epoch: 1})
	}
	return q, joined
}

// With explicit commits, lost trainers keep their tasks until a commit or a rollback, and the overview says that they are lost.
func TestOverviewNamesLostTrainers(t *testing.T) {
	q, _ := cutJobOf(t, Options{ExplicitCommit: true})
	for _, lost := range []bool{false, true} {
		for _, v := range q.Overview().Trainers {
			if v.Lost != lost || len(v.Tasks) != 1 {
				t.Errorf("expected a task, and lost %t, found %+v", lost, v)
			}
		}
		if n := len(q.Overview().Trainers); n != 2 {
			t.Errorf("expected 2 trainers, found %d", n)
		}
		q.Apply(q.Clock().Add(time.Minute), &Tick{})
	}
}

// With RetrainLost, another trainer immediately receives the task of a lost trainer, from its base. The job takes
// cuts without a rollback.
func TestLostTrainersTaskIsRetrainedAlone(t *testing.T) {
	for what, end := range map[string]func(q *Queue, a, b Answer){
		"lost":   func(q *Queue, a, _ Answer) { q.Apply(1, &Join{ID: "a"}) },
		"leaves": func(q *Queue, a, _ Answer) { q.Apply(1, &Leave{a.Ordinal, a.Incarnation}) },
		"fails": func(q *Queue, a, _ Answer) {
			q.Apply(1, &Request{Trainer: a.Ordinal, Incarnation: a.Incarnation, Seq: 2, Ack: 2, Epoch: 1, Finished: []Result{{Token: Token{1, 0, 0, 1, 0, 1}, Error: "damaged"}}})
		},
		"is lost in a cut, after it flushed": func(q *Queue, a, b Answer) {
			q.Apply(1, &CutBegin{Step: 1})
			flushed := &StepFlushed{Trainer: a.Ordinal, Incarnation: a.Incarnation, Step: 1, Positions: []TaskPosition{{Token{1, 0, 0, 1, 0, 1}, 4}}}
			if answer := q.Apply(1, flushed); answer.Err != nil {
				t.Fatal(answer.Err)
			}
			q.Apply(1, &Join{ID: "a"})
			q.Apply(1, &StepFlushed{Trainer: b.Ordinal, Incarnation: b.Incarnation, Step: 1})
			q.Apply(1, &CutRelease{})
			if answer := q.Apply(1, &StepCommit{Step: 1}); answer.Err != nil || answer.Kind != AnswerStep {
				t.Errorf("commit of a cut after the loss of its trainer: %+v", answer)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			q, joined := cutJobOf(t, Options{ExplicitCommit: true, Cuts: true, RetrainLost: true})
			end(q, joined[0], joined[1])
			if due := q.StepsDue(); due.Rollback {
				t.Error("a rollback is due")
			}
			b := joined[1]
			got := q.Apply(1, &Request{Trainer: b.Ordinal, Incarnation: b.Incarnation, Seq: 2, Ack: 2, Want: true, Epoch: 1, Finished: []Result{{Token: Token{1, 0, 0, 1, 1, 1}, Step: 2}}})
			if got.Kind != AnswerTask || got.Token.Position != 0 || got.Token.Attempt != 2 || got.Base != 0 {
				t.Fatalf("got %+v, expected the second attempt of position 0, from its first record", got)
			}
			q.Apply(1, &CutBegin{Step: 2})
			q.Apply(1, &StepFlushed{Trainer: b.Ordinal, Incarnation: b.Incarnation, Step: 2, Positions: []TaskPosition{{got.Token, 3}}})
			q.Apply(1, &CutRelease{})
			if answer := q.Apply(1, &StepCommit{Step: 2}); answer.Err != nil || answer.Kind != AnswerStep {
				t.Errorf("the next cut: %+v", answer)
			}
		})
	}
}

// A trainer that reports an ended epoch is not a member of the current epoch. It would never flush, and no cut would
// complete.
func TestTrainerOfEndedEpochIsNoCutMember(t *testing.T) {
	q, joined := cutJob(t)
	q.Apply(1, &Rollback{Generation: 1})
	late := q.Apply(1, &LastStep{Trainer: 1, Incarnation: joined[0].Incarnation, Epoch: 1})
	if late.Kind != AnswerStep || late.Place.Epoch != 2 {
		t.Errorf("trainer of an ended epoch: expected the number of epoch 2, got %+v", late)
	}
	q.Apply(1, &LastStep{Trainer: 2, Incarnation: joined[1].Incarnation, Epoch: 2})
	q.Apply(1, &CutBegin{Step: 1})
	if a := q.Apply(1, &StepFlushed{Trainer: 2, Incarnation: joined[1].Incarnation, Generation: 1, Step: 1}); a.Err != nil {
		t.Fatal(a.Err)
	}
	if a := q.Apply(1, &CutReady{Step: 1}); a.Kind != AnswerStep {
		t.Errorf("after the flush of the only member: expected a ready cut, got %+v", a)
	}
}

// When the job fails, quiesced trainers receive the end and are released.
func TestJobEndReleasesQuiescedTrainers(t *testing.T) {
	q, joined := cutJob(t)
	q.Apply(1, &CutBegin{Step: 1})
	flushed := &StepFlushed{Trainer: 1, Incarnation: joined[0].Incarnation, Step: 1}
	if a := q.Apply(1, flushed); a.Kind != AnswerWait || !q.StepsDue().Release {
		t.Fatalf("got %+v and due %+v, expected a trainer that waits for the leader", a, q.StepsDue())
	}
	q.status = Failed // as if the last task were set aside
	if a := q.Apply(1, flushed); a.Kind != AnswerStep {
		t.Errorf("after the end: expected a released trainer, got %+v", a)
	}
}

// Fail ends a job with its reason and answers trainers that wait for a step or watch for a cut. It does not change a job that has ended.
func TestFailEndsJobAndItsWaits(t *testing.T) {
	q, joined := cutJobOf(t, Options{ExplicitCommit: true, Cuts: true, Sync: true})
	a := joined[0]
	watch := &CutWatch{Trainer: a.Ordinal, Incarnation: a.Incarnation}
	if got := q.Apply(1, watch); got.Kind != AnswerWait {
		t.Fatalf("before: %+v, expected a wait", got)
	}
	if got := q.Apply(1, &Fail{"lost"}); got.Kind != AnswerFailed {
		t.Errorf("%+v, expected AnswerFailed", got)
	}
	q.Apply(1, &Fail{"again"})
	if status, reason := q.Status(); status != Failed || reason != "lost" {
		t.Errorf("the job is %v for %q, expected %v for %q", status, reason, Failed, "lost")
	}
	if got := q.Apply(1, watch); got.Kind != AnswerFailed {
		t.Errorf("a trainer that watches for a cut: %+v, expected AnswerFailed", got)
	}
	unblocked := map[WaitFor]bool{}
	for _, e := range q.Ready().Effects {
		if u, ok := e.(Unblocked); ok {
			unblocked[u.On] = true
		}
	}
	for _, w := range []WaitFor{WaitTask, WaitFlush, WaitStep} {
		if !unblocked[w] {
			t.Errorf("requests that %v are not answered", w)
		}
	}
	over := New("job", [16]byte{1}, 7, Options{Passes: 1})
	over.end(Ended, "")
	if got := over.Apply(1, &Fail{"late"}); got.Kind != AnswerEnded {
		t.Errorf("a job that has ended: %+v, expected AnswerEnded", got)
	}
}

// The keys of a rollback are stored with the state that rolled back.
func TestRollbackStoresKeysOfOtherComponents(t *testing.T) {
	q, _ := cutJob(t)
	q.Ready()
	write := Write{Key: "/ps_blocks", Value: []byte("placement")}
	if a := q.Apply(1, &Rollback{Generation: 1, Keys: []Write{write}}); a.Err != nil {
		t.Fatal(a.Err)
	}
	if writes := q.Ready().Writes; !slices.ContainsFunc(writes, func(w Write) bool { return w.Key == write.Key && string(w.Value) == string(write.Value) }) {
		t.Errorf("wrote %v: expected %s", writes, write.Key)
	}
}
