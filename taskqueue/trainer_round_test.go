package taskqueue

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// ownRounds is a queue with a round of the trainer "a" over three tasks, and the trainers "a" (0) and "b" (1). Each batch is verified.
type ownRounds struct {
	*sets
	verifier *Verifier
	effects  []Effect // of the last batch
}

func newOwnRounds(t *testing.T, opt Options, control string, begin bool) *ownRounds {
	t.Helper()
	opt.Merge, opt.HoldEnd, opt.Passes = joinMetrics, true, 2
	s := &ownRounds{sets: &sets{TB: t, q: New("job", [16]byte{1}, 7, opt)}, verifier: NewVerifier()}
	for i, of := range []setOf{{SetSpec{}, 8}, {heldOut, 3}} {
		table := tableOf(t, of.tasks)
		s.tables = append(s.tables, table)
		s.q.Apply(1, &Report{SetSpec: of.SetSpec, Digest: [32]byte{byte(i + 1)}, Table: table})
	}
	s.who = []Answer{s.q.Apply(1, &Join{ID: "a", Control: control}), s.q.Apply(1, &Join{ID: "b"})}
	s.commit()
	if begin {
		s.begin(1)
	}
	return s
}

func (s *ownRounds) begin(number uint64) {
	s.Helper()
	if a := s.q.Apply(s.q.Clock(), &BeginRound{Set: 1, Number: number, Trainer: "a"}); a.Err != nil {
		s.Fatal(a.Err)
	}
	s.commit()
}

// commit ends a batch, and compares the ledger with the state.
func (s *ownRounds) commit() {
	s.Helper()
	ready := s.q.Ready()
	s.effects = ready.Effects
	if len(ready.Entries) > 0 {
		if err := s.verifier.Add(s.q.Commit(), ready.Entries); err != nil {
			s.Fatal(err)
		}
	}
	if err := s.verifier.CrossCheck(s.q.Snapshot(1, 2)); err != nil {
		s.Fatal(err)
	}
}

// offer returns the answer to the offer of a task.
func (s *ownRounds) offer() Answer {
	s.Helper()
	return s.q.Apply(s.q.Clock(), &OfferTask{Trainer: s.who[0].Ordinal, Incarnation: s.who[0].Incarnation})
}

// due reports whether the last batch asks to offer a task.
func (s *ownRounds) due() bool {
	return slices.ContainsFunc(s.effects, func(e Effect) bool {
		due, ok := e.(EvaluateDue)
		return ok && due == EvaluateDue{s.who[0].Ordinal, s.who[0].Incarnation, "a", "10.0.0.7:9000", 1}
	})
}

// result reports a result of the trainer outside the order of its requests.
func (s *ownRounds) result(r Result) FinishStatus {
	s.Helper()
	a := s.q.Apply(s.q.Clock(), &Request{Trainer: s.who[0].Ordinal, Incarnation: s.who[0].Incarnation, Seq: 1, Finished: []Result{r}})
	if a.Err != nil || len(a.Finishes) != 1 {
		s.Fatalf("%+v", a)
	}
	s.commit()
	return a.Finishes[0]
}

func (s *ownRounds) wantEnded(results int, metrics, outcome string) {
	s.Helper()
	s.commit()
	r, open := s.q.Round()
	if open || r.Results != results || string(r.Metrics) != metrics || r.Outcome != outcome {
		s.Errorf("expected the end with %d results, %q, %q; found %+v, open %v", results, metrics, outcome, r, open)
	}
}

const ownAddress = "10.0.0.7:9000"

func TestRoundOfATrainerIsOfferedToItOneTaskAtATime(t *testing.T) {
	s := newOwnRounds(t, Options{}, ownAddress, true)
	if r, open := s.q.Round(); !open || r.Trainer != s.who[0].Ordinal || r.Name != "a" || !s.due() {
		t.Fatalf("round %+v, %v, effects %+v", r, open, s.effects)
	}
	for i := range 2 {
		s.wantSet(s.ask(i, allKinds), 0) // the trainers continue to train
	}
	var tokens []Token
	for i := range 3 {
		a := s.wantSet(s.offer(), 1)
		if a.Round == nil || a.Round.Model != "" || slices.Contains(tokens, a.Token) {
			t.Fatalf("task %d: %+v, round %+v", i, a.Token, a.Round)
		}
		if again := s.offer(); again.Token != a.Token {
			t.Errorf("a second offer: %v, expected %v", again.Token, a.Token)
		}
		tokens = append(tokens, a.Token)
		s.commit()
		// Requests of the trainer list no offered task.
		s.q.Apply(s.q.Clock(), &Request{Trainer: s.who[0].Ordinal, Incarnation: s.who[0].Incarnation, Seq: uint64(50 + i), Ack: uint64(50 + i)})
		for range 2 {
			want := Counted
			if s.q.sets[1].byKey[liveKey{1, a.Token.Position}] == nil {
				want = AlreadyCounted
			}
			if found := s.result(Result{Token: a.Token, Metrics: []byte("m")}); found != want {
				t.Errorf("result: %v, expected %v", found, want)
			}
			if want == Counted && s.due() != (i < 2) {
				t.Errorf("after task %d: effects %+v", i, s.effects)
			}
		}
	}
	s.wantEnded(3, ",m,m,m", "")
	if a := s.offer(); a.Kind != AnswerWait {
		t.Errorf("after the round: %+v", a)
	}
}

func TestTrainerWithoutAnAddressGetsItsRoundByRequest(t *testing.T) {
	s := newOwnRounds(t, Options{}, "", true)
	if s.due() {
		t.Errorf("effects %+v", s.effects)
	}
	s.wantSet(s.ask(1, allKinds), 0)
	if a := s.offer(); a.Kind != AnswerWait {
		t.Errorf("offer: %+v", a)
	}
	for range 3 {
		a := s.wantSet(s.ask(0, allKinds), 1)
		s.result(Result{Token: a.Token, Metrics: []byte("m")})
	}
	s.wantEnded(3, ",m,m,m", "")
}

func TestReplyToBeatHasTaskOfOwnRound(t *testing.T) {
	s := newOwnRounds(t, Options{}, "", true)
	beat := func(i int, evaluates bool) Answer {
		a := s.q.Apply(s.q.Clock(), &Heartbeat{Trainer: s.who[i].Ordinal, Incarnation: s.who[i].Incarnation, Evaluates: evaluates})
		s.commit()
		return a
	}
	if a := beat(0, false); a.Kind == AnswerTask {
		t.Errorf("trainer that takes no tasks with heartbeats: %+v", a)
	}
	if a := beat(1, true); a.Kind == AnswerTask {
		t.Errorf("another trainer: %+v", a)
	}
	for i := range 3 {
		a := s.wantSet(beat(0, true), 1)
		if again := beat(0, true); again.Token != a.Token {
			t.Errorf("the next heartbeat: %v, expected %v", again.Token, a.Token)
		}
		s.result(Result{Token: a.Token, Metrics: []byte("m")})
		if i == 0 {
			s.wantSet(s.ask(0, allKinds), 0) // a training task, because it holds no other one
		}
	}
	s.wantEnded(3, ",m,m,m", "")
}

// A round of a trainer that cannot continue ends with a reason. It sets no task aside, and blocks no other round.
func TestRoundOfATrainerEndsWithAReason(t *testing.T) {
	for name, c := range map[string]struct {
		end     func(s *ownRounds, held Token)
		outcome string
		stops   bool
	}{
		"lost": {func(s *ownRounds, _ Token) {
			s.q.Apply(s.q.Clock().Add(time.Hour), &Tick{})
		}, "trainer a: it was lost", true},
		"joins again":    {func(s *ownRounds, _ Token) { s.q.Apply(s.q.Clock(), &Join{ID: "a", Control: ownAddress}) }, "trainer a: it was lost", true},
		"leaves":         {func(s *ownRounds, _ Token) { s.q.Apply(s.q.Clock(), &Leave{s.who[0].Ordinal, s.who[0].Incarnation}) }, "trainer a: it has left", true},
		"drained":        {func(s *ownRounds, _ Token) { s.q.Apply(s.q.Clock(), &Drain{ID: "a"}) }, "trainer a: it is being drained", true},
		"stopped":        {func(s *ownRounds, _ Token) { s.q.Apply(s.q.Clock(), &StopTasks{ID: "a"}) }, "trainer a: its task was stopped by an operator", true},
		"task fails":     {func(s *ownRounds, held Token) { s.result(Result{Token: held, Error: "no model yet"}) }, "trainer a: task failed: no model yet", false},
		"task times out": {func(s *ownRounds, _ Token) { s.later(time.Minute + 1) }, "trainer a: task timed out after 1m0s", true},
		"no task is taken": {func(s *ownRounds, held Token) {
			s.result(Result{Token: held, Metrics: []byte("m")})
			s.later(10*time.Minute + 1)
		}, "trainer a: it has finished no task for 10m0s", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newOwnRounds(t, Options{TimeoutMin: time.Minute, TimeoutMax: time.Minute, SessionTTL: 59 * time.Minute}, ownAddress, true)
			s.q.sets[1].average = 1 // the timeout is a minute
			s.ask(0, allKinds)
			held := s.wantSet(s.offer(), 1).Token
			s.commit()
			c.end(s, held)
			r, _ := s.q.Round()
			s.commit()
			stop := slices.ContainsFunc(s.effects, func(e Effect) bool {
				due, ok := e.(StopDue)
				return ok && slices.Contains(due.Stops, held)
			})
			if stop != c.stops {
				t.Errorf("stop of the task: %v, effects %+v", stop, s.effects)
			}
			s.wantEnded(r.Results, string(r.Metrics), c.outcome)
			if len(s.q.sets[1].aside) > 0 {
				t.Error("a task is set aside")
			}
			if found := s.result(Result{Token: held, Metrics: []byte("late")}); found != AlreadyCounted {
				t.Errorf("late result: %v", found)
			}
			if now, _ := s.q.Round(); string(now.Metrics) != string(r.Metrics) {
				t.Errorf("late result is merged: %q", now.Metrics)
			}
			reports := s.verifier.Report()
			if last := reports[len(reports)-1]; last.Missing > 0 || last.Abandoned != 3-last.CountedOnce || last.CountedOnce != r.Results {
				t.Errorf("ledger: %+v", last)
			}
			q, err := Restore(s.q.Snapshot(1, 2), s.q.encodedRoster(), s.tables, Options{Merge: joinMetrics, HoldEnd: true, Passes: 2})
			if err != nil {
				t.Fatal(err)
			}
			if err := q.RestoreRound(r.Encode(), nil); err != nil || q.IsOpen(1) {
				t.Errorf("restored with an open round: %v", err)
			}
			// Other rounds begin, and training continues.
			if a := s.q.Apply(s.q.Clock(), &BeginRound{Set: 1, Number: 2, Model: "set-1"}); a.Err != nil {
				t.Fatal(a.Err)
			}
			s.who[1] = s.q.Apply(s.q.Clock(), &Join{ID: "c"})
			s.wantSet(s.ask(1, allKinds), 1)
			s.wantSet(s.ask(1, trainOnly), 0)
			s.commit()
		})
	}
}

// later lets time pass with heartbeats.
func (s *ownRounds) later(d time.Duration) {
	for until := s.q.Clock().Add(d); s.q.Clock() < until; {
		for _, who := range s.who {
			s.q.Apply(min(s.q.Clock().Add(time.Minute), until), &Heartbeat{Trainer: who.Ordinal, Incarnation: who.Incarnation})
		}
		s.q.Apply(s.q.Clock(), &Tick{})
	}
}

func TestRoundOfATrainerThatAcceptsNoEvaluationEnds(t *testing.T) {
	s := newOwnRounds(t, Options{}, "", true)
	s.wantSet(s.ask(0, trainOnly), 0)
	s.wantEnded(0, "", "trainer a: it requests no evaluation tasks")
}

func TestNextTermOffersTaskAgain(t *testing.T) {
	s := newOwnRounds(t, Options{}, ownAddress, true)
	held := s.wantSet(s.offer(), 1).Token
	s.commit()
	round, _ := s.q.Round()
	q, err := Restore(s.q.Snapshot(1, 2), s.q.encodedRoster(), s.tables, Options{Merge: joinMetrics, HoldEnd: true, Passes: 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := q.RestoreRound(round.Encode(), nil); err != nil {
		t.Fatal(err)
	}
	s.q, s.effects = q, q.Outstanding()
	if !s.due() {
		t.Errorf("outstanding %+v", s.effects)
	}
	if a := s.offer(); a.Token != held {
		t.Errorf("offered %v, expected %v", a.Token, held)
	}
	delete(q.trainers, s.who[0].Ordinal) // as after a restore from a backup
	q.Apply(q.Clock(), &Tick{})
	if r, open := q.Round(); open || r.Outcome != "trainer a: it was lost" {
		t.Errorf("without its trainer: %+v, %v", r, open)
	}
}

func TestRoundOfATrainerIsRefused(t *testing.T) {
	s := newOwnRounds(t, Options{}, ownAddress, false)
	s.q.Apply(1, &PlainAsk{Connection: "plain", Want: true})
	s.q.Apply(1, &Drain{ID: "b"})
	for id, want := range map[string]error{"a": nil, "b": ErrNoCommands, "plain": ErrNoCommands, "z": ErrNoTrainer} {
		if err := s.q.MayEvaluate(id); !errors.Is(err, want) {
			t.Errorf("%s: %v, expected %v", id, err, want)
		}
		before := s.q.round
		if a := s.q.Apply(1, &BeginRound{Set: 1, Number: 5, Trainer: id}); !errors.Is(a.Err, want) || want != nil && !reflect.DeepEqual(s.q.round, before) {
			t.Errorf("round of %s: %+v", id, a)
		}
		if want == nil {
			s.q.endOwnRound("for the next case")
		}
	}
	sync := New("job", [16]byte{1}, 7, Options{Sync: true})
	sync.Apply(1, &Join{ID: "a"})
	if err := sync.MayEvaluate("a"); !errors.Is(err, ErrSharedModel) {
		t.Errorf("synchronous job: %v", err)
	}
}

func TestAbandonedTrainingPassIsImpossible(t *testing.T) {
	for kind, want := range map[Kind]error{Training: ErrBadLedger, Evaluation: nil} {
		var w ledgerWriter
		w.report(&set{tasks: 2, chunks: 2, name: "x", kind: kind, weight: 1})
		w.passOpened(0, 1)
		w.passAbandoned(0, 1)
		err := NewVerifier().Add(1, w.take())
		if !errors.Is(err, want) || want != nil && !strings.Contains(err.Error(), "abandoned") {
			t.Errorf("%v: %v", kind, err)
		}
	}
}
