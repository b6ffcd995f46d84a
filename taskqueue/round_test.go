package taskqueue

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// joinMetrics is a merge for tests: a list of texts. The text "bad" does not fit.
func joinMetrics(merged, more []byte) ([]byte, error) {
	if string(more) == "bad" {
		return nil, errors.New("bad does not fit")
	}
	return bytes.Join([][]byte{merged, more}, []byte(",")), nil
}

// newRounds is a queue with a training and an evaluation dataset, and an open round.
func newRounds(t rapid.TB, opt Options, tasks int) *sets {
	opt.Merge = joinMetrics
	s := newSets(t, opt, 2, setOf{SetSpec{}, 4}, setOf{heldOut, tasks})
	a := s.q.Apply(1, &BeginRound{Set: 1, Number: 7, Version: 30, Model: "set-3", With: StoreKeys{Writes: []Write{{Key: "/evaluation", Value: []byte("state")}}}})
	if a.Err != nil || a.Token.Pass != 1 {
		t.Fatalf("begin: %+v", a)
	}
	return s
}

// round returns the round that the last commit stored.
func storedRound(t rapid.TB, r Ready) (round Round, ok bool) {
	t.Helper()
	for _, w := range r.Writes {
		if w.Key == RoundKey {
			round, err := DecodeRound(w.Value)
			if err != nil {
				t.Fatal(err)
			}
			return round, true
		}
	}
	return Round{}, false
}

func TestRoundIsStoredWithItsDecision(t *testing.T) {
	s := newRounds(t, Options{Passes: 1}, 2)
	r := s.q.Ready()
	if want := (Write{Key: "/evaluation", Value: []byte("state")}); !reflect.DeepEqual(r.Writes[0], want) {
		t.Errorf("writes %+v: expected %+v first", r.Writes, want)
	}
	if found, ok := storedRound(t, r); !ok || !reflect.DeepEqual(found, Round{Number: 7, Set: 1, Pass: 1, Version: 30, Model: "set-3"}) {
		t.Errorf("stored %+v, %v", found, ok)
	}
	with := StoreKeys{Writes: []Write{{Key: "/evaluation", Value: []byte("other")}}}
	for name, c := range map[string]struct {
		ev  Event
		err error
	}{
		"another number": {&BeginRound{Set: 1, Number: 8, With: with}, ErrRoundOpen},
		"another kind":   {&BeginRound{Set: 0, Number: 8, With: with}, ErrNotEvaluation},
		"no dataset":     {&BeginRound{Set: 9, Number: 8, With: with}, ErrBadSet},
		"the same":       {&BeginRound{Set: 1, Number: 7, With: with}, nil},
	} {
		if a := s.q.Apply(2, c.ev); !errors.Is(a.Err, c.err) {
			t.Errorf("%s: expected %v, found %v", name, c.err, a.Err)
		}
		if r := s.q.Ready(); len(r.Writes) > 0 {
			t.Errorf("%s: found writes %+v", name, r.Writes)
		}
	}
}

func TestTaskOfARoundHasItsModel(t *testing.T) {
	s := newRounds(t, Options{Passes: 1}, 2)
	a := s.wantSet(s.ask(0, allKinds), 1)
	if want := (Round{Number: 7, Set: 1, Pass: 1, Version: 30, Model: "set-3"}); a.Round == nil || !reflect.DeepEqual(*a.Round, want) {
		t.Errorf("expected %+v, found %+v", want, a.Round)
	}
	if a := s.wantSet(s.ask(1, trainOnly), 0); a.Round != nil {
		t.Errorf("training task with round %+v", a.Round)
	}
}

func TestMetricsOfCountedFinishesAreMergedOnce(t *testing.T) {
	s := newRounds(t, Options{Passes: 1}, 3)
	var held [3]Token
	for i := range held {
		held[i] = s.wantSet(s.ask(i%2, allKinds), 1).Token
	}
	s.q.Ready()
	finish := func(tok Token, metrics string) Answer {
		return s.q.Apply(2, &Request{Trainer: s.who[0].Ordinal, Incarnation: s.who[0].Incarnation, Seq: 9, Held: held[:], Finished: []Result{{Token: tok, Metrics: []byte(metrics)}}})
	}
	want := func(results int, metrics string) {
		t.Helper()
		r, _ := s.q.Round()
		if r.Results != results || string(r.Metrics) != metrics {
			t.Fatalf("expected %d results, %q; found %d, %q", results, metrics, r.Results, r.Metrics)
		}
	}
	if a := finish(held[0], "bad"); !errors.Is(a.Err, ErrBadMetrics) || !strings.Contains(a.Err.Error(), "bad does not fit") {
		t.Errorf("bad metrics: %+v", a)
	}
	want(0, "")
	if r := s.q.Ready(); r.MustCommit {
		t.Errorf("a refused result has changed %+v", r)
	}
	finish(held[0], "a")
	want(1, ",a")
	if found, ok := storedRound(t, s.q.Ready()); !ok || string(found.Metrics) != ",a" {
		t.Errorf("stored %+v, %v", found, ok)
	}
	if a := finish(held[0], "bad"); a.Err != nil || a.Finishes[0] != AlreadyCounted {
		t.Errorf("a repetition: %+v", a)
	}
	stale := held[1]
	stale.Attempt = 9
	if a := finish(stale, "x"); a.Finishes[0] != Stale {
		t.Errorf("a stale finish: %+v", a)
	}
	want(1, ",a")
	finish(held[2], "c")
	if a := s.q.Apply(2, &PlainAsk{Connection: "p", Finished: true, Task: held[1].ID(), Result: Result{Metrics: []byte("bad")}}); !errors.Is(a.Err, ErrBadMetrics) {
		t.Errorf("bad metrics without a session: %+v", a)
	}
	s.q.Apply(2, &PlainAsk{Connection: "p", Finished: true, Task: held[1].ID(), Result: Result{Metrics: []byte("b")}})
	want(3, ",a,c,b")
	if _, open := s.q.Round(); open {
		t.Error("the round is open after its last finish")
	}
	if a := s.q.Apply(3, &BeginRound{Set: 1, Number: 8, Model: "set-4"}); a.Err != nil {
		t.Fatal(a.Err)
	}
	want(0, "")
	if a := finish(held[1], "late"); a.Finishes[0] != AlreadyCounted {
		t.Errorf("a finish of the round before: %+v", a)
	}
	want(0, "")
}

func TestRoundContinuesAfterARestore(t *testing.T) {
	s := newRounds(t, Options{Passes: 1}, 2)
	tok := s.wantSet(s.ask(0, allKinds), 1).Token
	s.q.Apply(2, &Request{Trainer: s.who[0].Ordinal, Incarnation: s.who[0].Incarnation, Seq: 9, Held: []Token{tok}, Finished: []Result{{Token: tok, Metrics: []byte("a")}}})
	round, _ := s.q.Round()
	restore := func(value []byte) *Queue {
		q, err := Restore(s.q.Snapshot(1, 2), nil, s.tables, Options{Passes: 1, Merge: joinMetrics})
		if err != nil {
			t.Fatal(err)
		}
		if err := q.RestoreRound(value, []byte(`{"path":"m","version":3}`)); err != nil {
			t.Fatal(err)
		}
		return q
	}
	q := restore(round.Encode())
	if r, open := q.Round(); !open || !reflect.DeepEqual(r, round) || string(r.Metrics) != ",a" || q.Model() != (Model{"m", 3}) {
		t.Errorf("restored %+v, %v, model %+v; expected %+v", r, open, q.Model(), round)
	}
	later := round
	later.Pass = 2
	for name, value := range map[string][]byte{"no round": nil, "a round that the state does not have": later.Encode()} {
		if r, open := restore(value).Round(); open || r.Number != 0 {
			t.Errorf("%s: found %+v", name, r)
		}
	}
	for _, value := range []string{"", "{}", "x\n"} {
		if err := s.q.RestoreRound([]byte(value), nil); !errors.Is(err, ErrDamaged) {
			t.Errorf("%q: expected %v, found %v", value, ErrDamaged, err)
		}
	}
}

func TestMetricThatIsNotFiniteIsNoted(t *testing.T) {
	s := newRounds(t, Options{Passes: 1}, 2)
	tok := s.wantSet(s.ask(0, allKinds), 1).Token
	other := tok
	other.Position = 9
	for _, ev := range []Event{&RefuseMetric{Token: other, Name: "x"}, &RefuseMetric{Task: 1, Name: "x"}, &RefuseMetric{Token: tok}} {
		s.q.Apply(2, ev)
		if r, _ := s.q.Round(); r.NotFinite != "" {
			t.Errorf("%+v: found %q", ev, r.NotFinite)
		}
	}
	s.q.Apply(2, &RefuseMetric{Task: tok.ID(), Name: "loss"})
	s.q.Apply(2, &RefuseMetric{Token: tok, Name: "accuracy"})
	if r, _ := s.q.Round(); r.NotFinite != "loss" {
		t.Errorf("found %q, expected the first", r.NotFinite)
	}
	if found := s.q.PendingTasks(); len(found) != 1 || found[0].Token != tok || len(found[0].Holders) != 1 {
		t.Errorf("the task stays dispatched: %+v", found)
	}
}

func TestHeldJobEndsByEvent(t *testing.T) {
	s := newSets(t, Options{Passes: 1, HoldEnd: true}, 1, setOf{SetSpec{}, 1}, setOf{heldOut, 1})
	if s.q.PassesDone() || s.q.ClosedPasses() != 0 {
		t.Error("passes done before the first finish")
	}
	tok := s.wantSet(s.ask(0, trainOnly), 0).Token
	if a := s.ask(0, trainOnly, Result{Token: tok, Model: Model{"models/1", 4}}); a.Kind != AnswerWait {
		t.Fatalf("the end is held: %+v", a)
	}
	if !s.q.PassesDone() || s.q.ClosedPasses() != 1 || s.q.Model() != (Model{"models/1", 4}) {
		t.Errorf("done %v, %d passes, model %+v", s.q.PassesDone(), s.q.ClosedPasses(), s.q.Model())
	}
	s.q.Ready()
	end := &EndJob{Reason: "target-reached: accuracy is 1", With: StoreKeys{Writes: []Write{{Key: "/evaluation", Value: []byte("x")}}}}
	if a := s.q.Apply(2, end); a.Err != nil {
		t.Fatal(a.Err)
	}
	if status, reason := s.q.Status(); status != Ended || reason != end.Reason {
		t.Errorf("status %v, %q", status, reason)
	}
	if r := s.q.Ready(); len(r.Writes) == 0 || r.Writes[0].Key != "/evaluation" || fmt.Sprint(r.Effects[0]) != fmt.Sprint(JobEnded{Ended, end.Reason}) {
		t.Errorf("%+v", r)
	}
	if a := s.q.Apply(3, end); !errors.Is(a.Err, ErrJobOver) {
		t.Errorf("a second end: %+v", a)
	}
	if a := s.ask(0, trainOnly); a.Kind != AnswerEnded {
		t.Errorf("after the end: %+v", a)
	}
}

// A job that waits for its last round has not ended, also for a reader and after a restore.
func TestHeldJobIsReadAsStored(t *testing.T) {
	s := newSets(t, Options{Passes: 1, HoldEnd: true}, 1, setOf{SetSpec{}, 1}, setOf{heldOut, 1})
	s.ask(0, trainOnly, Result{Token: s.wantSet(s.ask(0, trainOnly), 0).Token})
	s.q.Ready()
	state := s.q.Snapshot(1, 2)
	for name, options := range map[string]Options{"read": AsStored, "restored": BackupOptions} {
		q, err := Restore(state, s.q.encodedRoster(), []*Table{nil, nil}, options)
		if err != nil {
			t.Fatal(err)
		}
		if status, reason := q.Status(); status != Running {
			t.Errorf("%s: found %v %q, expected %v", name, status, reason, Running)
		}
	}
}

// F174: two results of a request that fit the round, and not each other, are refused together.
func TestResultsOfARequestMustFitEachOther(t *testing.T) {
	other := errors.New("expected a metric of the same type")
	q := New("job", [16]byte{1}, 1, Options{Merge: func(merged, more []byte) ([]byte, error) {
		if len(merged) > 0 && merged[0] != more[0] {
			return nil, other
		}
		return append(merged[:len(merged):len(merged)], more...), nil
	}})
	report := func(kind Kind, n int) int {
		a := q.Apply(1, &Report{SetSpec: SetSpec{Name: kind.String(), Kind: kind}, Digest: [32]byte{byte(kind) + 1}, ReportID: kind.String(), Table: tableOf(t, n)})
		if a.Err != nil {
			t.Fatal(a.Err)
		}
		return a.Set
	}
	report(Training, 4)
	if a := q.Apply(1, &BeginRound{Set: report(Evaluation, 2), Number: 1, Model: "m"}); a.Err != nil {
		t.Fatal(a.Err)
	}
	j := q.Apply(1, &Join{ID: "a"})
	var held []Token
	for seq := uint64(1); seq <= 2; seq++ {
		a := q.Apply(1, &Request{Trainer: j.Ordinal, Incarnation: j.Incarnation, Seq: seq, Ack: seq, Held: held, Want: true, Accepts: KindsOf(Evaluation)})
		if a.Kind != AnswerTask {
			t.Fatalf("expected a task, found %+v", a)
		}
		held = append(held, a.Token)
	}
	a := q.Apply(1, &Request{Trainer: j.Ordinal, Incarnation: j.Incarnation, Seq: 3, Ack: 3, Finished: []Result{{Token: held[0], Metrics: []byte("a")}, {Token: held[1], Metrics: []byte("b")}}})
	if r, open := q.Round(); !errors.Is(a.Err, ErrBadMetrics) || r.Results != 0 || !open {
		t.Errorf("expected no result of the request, found %d (open: %v), %v", r.Results, open, a.Err)
	}
}

// F258: a state of an earlier time is restored, and the key of the round has later results. Results of tasks that are dispatched again are in
// the metrics once. Without the other results, the round has no figures.
func TestRoundOfAnEarlierStateHasEachResultOnce(t *testing.T) {
	opt := Options{Merge: func(merged, more []byte) ([]byte, error) {
		return append(merged[:len(merged):len(merged)], more...), nil
	}}
	q := New("job", [16]byte{1}, 1, opt)
	report := func(kind Kind, n int) int {
		a := q.Apply(1, &Report{SetSpec: SetSpec{Name: kind.String(), Kind: kind}, Digest: [32]byte{byte(kind) + 1}, ReportID: kind.String(), Table: tableOf(t, n)})
		if a.Err != nil {
			t.Fatal(a.Err)
		}
		return a.Set
	}
	report(Training, 4)
	set := report(Evaluation, 3)
	if a := q.Apply(1, &BeginRound{Set: set, Number: 1, Model: "m"}); a.Err != nil {
		t.Fatal(a.Err)
	}
	finish := func(q *Queue) {
		t.Helper()
		j := q.Apply(2, &Join{ID: "a"})
		a := q.Apply(2, &Request{Trainer: j.Ordinal, Incarnation: j.Incarnation, Seq: 1, Want: true, Accepts: KindsOf(Evaluation)})
		if a.Kind != AnswerTask {
			t.Fatalf("expected a task, found %+v", a)
		}
		q.Apply(2, &Request{Trainer: j.Ordinal, Incarnation: j.Incarnation, Seq: 2, Finished: []Result{{Token: a.Token, Metrics: []byte{byte(a.Index)}}}})
	}
	begun := q.Snapshot(1, 1)
	finish(q)
	one := q.Snapshot(1, 1)
	finish(q)
	q.Ready()
	later := q.round.Encode() // of two results
	for name, c := range map[string]struct {
		at      *Snapshot
		results int
		outcome bool
	}{
		"no result": {begun, 3, false}, "one result": {one, 2, true},
	} {
		again, err := Restore(c.at, nil, []*Table{q.Table(0), q.Table(1)}, opt)
		if err != nil {
			t.Fatal(err)
		}
		if err := again.RestoreRound(later, nil); err != nil {
			t.Fatal(err)
		}
		for range c.results {
			finish(again)
		}
		if r, open := again.Round(); open || r.Results != c.results || len(r.Metrics) != c.results || (r.Outcome != "") != c.outcome {
			t.Errorf("%s: expected a round of 3 tasks with %d results, outcome %v, found %d results, merged %v, outcome %q", name, c.results, c.outcome, r.Results, r.Metrics, r.Outcome)
		}
	}
}

// F259: tasks that fail in one round, for example because of its model, are evaluated in the next round. A dropped task is not. The round that
// ends without tasks has their number.
func TestNextRoundHasAllTasks(t *testing.T) {
	const tasks = 2*maxReturned + 9
	q := New("job", [16]byte{1}, 1, Options{MaxFailures: 1, Merge: joinMetrics})
	ledger, keys := NewVerifier(), map[string]bool{}
	commit := func() {
		t.Helper()
		r := q.Ready()
		if !r.MustCommit {
			return
		}
		deleted := 0
		for _, w := range r.Writes {
			if w.Delete {
				deleted++
			}
			if strings.HasPrefix(w.Key, AsidePrefix) {
				if keys[w.Key] = true; w.Delete {
					delete(keys, w.Key)
				}
			}
		}
		if deleted > maxReturned {
			t.Errorf("a commit deletes %d keys, expected at most %d", deleted, maxReturned)
		}
		if err := errors.Join(ledger.Add(q.Commit(), r.Entries), ledger.CrossCheck(q.Snapshot(1, 1))); err != nil {
			t.Fatal(err)
		}
	}
	report := func(kind Kind, n int) int {
		a := q.Apply(1, &Report{SetSpec: SetSpec{Name: kind.String(), Kind: kind}, Digest: [32]byte{byte(kind) + 1}, ReportID: kind.String(), Table: tableOf(t, n)})
		if a.Err != nil {
			t.Fatal(a.Err)
		}
		return a.Set
	}
	report(Training, 4)
	set := report(Evaluation, tasks)
	j := q.Apply(1, &Join{ID: "a"})
	seq := uint64(0)
	ask := func(results ...Result) Answer {
		defer commit()
		seq++
		return q.Apply(1, &Request{Trainer: j.Ordinal, Incarnation: j.Incarnation, Seq: seq, Ack: seq, Want: true, Accepts: KindsOf(Evaluation), Finished: results})
	}
	round := func(number uint64, fails bool) Round {
		t.Helper()
		for waits := true; waits; {
			a := q.Apply(1, &BeginRound{Set: set, Number: number, Model: "m"})
			if a.Err != nil {
				t.Fatal(a.Err)
			}
			waits = a.Kind == AnswerWait
			commit()
		}
		for a := ask(); a.Kind == AnswerTask; {
			r := Result{Token: a.Token, Metrics: []byte{byte(a.Index)}}
			if fails && a.Index > 0 {
				r.Error, r.Metrics = "the model of this round was removed", nil
			}
			a = ask(r)
		}
		r, open := q.Round()
		if open {
			t.Fatalf("round %d is open", number)
		}
		return r
	}
	if r := round(1, true); r.Results != 1 || r.SetAside != tasks-1 {
		t.Fatalf("round 1: expected 1 result and %d tasks set aside, found %d and %d", tasks-1, r.Results, r.SetAside)
	}
	if a := q.Apply(1, &DropTask{Set: set, Index: 5}); a.Err != nil {
		t.Fatal(a.Err)
	}
	commit()
	if r := round(2, false); r.Results != tasks-1 || r.SetAside != 0 {
		t.Errorf("round 2, of another model: expected the results of all tasks except a dropped one, found %d of %d tasks and %d set aside", r.Results, tasks, r.SetAside)
	}
	if len(keys) != 1 || !keys[AsideKey(set, 5)] {
		t.Errorf("expected the key of the dropped task, found %v", keys)
	}
}
