package taskqueue

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// sets is a queue with several datasets and joined trainers.
type sets struct {
	rapid.TB
	q      *Queue
	tables []*Table
	who    []Answer
	seq    uint64
}

type setOf struct {
	SetSpec
	tasks int
}

func newSets(t rapid.TB, opt Options, trainers int, list ...setOf) *sets {
	t.Helper()
	s := &sets{TB: t, q: New("job", [16]byte{1}, 7, opt)}
	for i, of := range list {
		table := tableOf(t, of.tasks)
		s.tables = append(s.tables, table)
		if a := s.q.Apply(1, &Report{SetSpec: of.SetSpec, Digest: [32]byte{byte(i + 1)}, ReportID: fmt.Sprint("r", i), Table: table}); a.Err != nil || a.Set != i {
			t.Fatalf("report %d: %+v", i, a)
		}
	}
	for i := range trainers {
		s.who = append(s.who, s.q.Apply(1, &Join{ID: fmt.Sprint("t", i)}))
		if opt.ExplicitCommit {
			s.q.Apply(1, &LastStep{Trainer: s.who[i].Ordinal, Incarnation: s.who[i].Incarnation})
		}
	}
	s.q.Ready()
	return s
}

func (s *sets) ask(i int, accepts Kinds, results ...Result) Answer {
	s.Helper()
	s.seq++
	return s.q.Apply(s.q.Clock(), &Request{Trainer: s.who[i].Ordinal, Incarnation: s.who[i].Incarnation, Seq: s.seq, Finished: results, Want: true, Accepts: accepts, Epoch: s.q.Epoch()})
}

func (s *sets) round(set int) Token {
	s.Helper()
	a := s.q.Apply(s.q.Clock(), &BeginRound{Set: set})
	if a.Err != nil {
		s.Fatal(a.Err)
	}
	return a.Token
}

func (s *sets) wantSet(a Answer, set int) Answer {
	s.Helper()
	if a.Kind != AnswerTask || a.Set != set {
		s.Fatalf("expected a task of dataset %d, found %+v", set, a)
	}
	return a
}

var (
	trainOnly = Kinds(0)
	allKinds  = KindsOf(Training, Evaluation, Prediction)
	heldOut   = SetSpec{Name: "held-out", Kind: Evaluation}
)

func TestDatasetsShareDispatchesByWeight(t *testing.T) {
	s := newSets(t, Options{Passes: 3}, 1, setOf{SetSpec{Name: "web", Weight: 700}, 70}, setOf{SetSpec{Name: "books", Weight: 300}, 1000}, setOf{SetSpec{Name: "empty-handed", Weight: 100, Passes: 1}, 1})
	counts := make([]int, 3)
	var last []Result
	paid := 0 // credit of the third dataset after its only dispatch
	for i := range 320 {
		a := s.ask(0, trainOnly, last...)
		if a.Kind != AnswerTask {
			t.Fatalf("dispatch %d: %+v", i, a)
		}
		if counts[a.Set]++; a.Set == 2 {
			paid = s.q.sets[2].credit
		}
		last = []Result{{Token: a.Token}}
		if n := i - counts[2] + 1; counts[0] < 3*70 && (10*counts[0] < 7*n-10 || 10*counts[0] > 7*n+10) {
			t.Fatalf("after %d dispatches: found %v, expected 7 of 10 from the first dataset", i+1, counts)
		}
	}
	if counts[2] != 1 || counts[0] != 3*70 {
		t.Fatalf("dispatches %v: expected one from the dataset with one task and 210 from the dataset whose passes ended, each pass alone", counts)
	}
	if found := s.q.sets[2].credit; paid >= 0 || found != paid {
		t.Errorf("the dataset without a task has a credit of %d: expected %d, as after its only dispatch", found, paid)
	}
}

func TestJobEndsAfterItsLastDataset(t *testing.T) {
	s := newSets(t, Options{Passes: 1, Sets: []string{"a", "b"}}, 1, setOf{SetSpec{Name: "a"}, 1})
	a := s.wantSet(s.ask(0, trainOnly), 0)
	if a = s.ask(0, trainOnly, Result{Token: a.Token}); a.Kind != AnswerWait {
		t.Fatalf("a dataset of the job is not registered yet: %+v", a)
	}
	s.tables = append(s.tables, tableOf(t, 1))
	if a := s.q.Apply(1, &Report{SetSpec: SetSpec{Name: "b", Kind: Prediction}, Digest: [32]byte{9}, Table: s.tables[1]}); a.Err != nil {
		t.Fatal(a.Err)
	}
	if a = s.ask(0, trainOnly); a.Kind != AnswerWait {
		t.Fatalf("a trainer that does not predict: %+v", a)
	}
	a = s.wantSet(s.ask(0, KindsOf(Prediction)), 1)
	if a = s.ask(0, KindsOf(Prediction), Result{Token: a.Token}); a.Kind != AnswerEnded {
		t.Fatalf("after the last task of the last dataset: %+v", a)
	}
}

// A trainer that waits for the last training task of another trainer predicts nothing yet: the model is not final.
func TestPredictionBeginsAfterTraining(t *testing.T) {
	s := newSets(t, Options{Passes: 2, Sets: []string{"training", "prediction"}}, 2, setOf{SetSpec{Kind: Prediction}, 1}, setOf{SetSpec{}, 1})
	for range 2 {
		last := s.wantSet(s.ask(0, allKinds), 1)
		if a := s.ask(1, allKinds); a.Kind != AnswerWait {
			t.Fatalf("during the training: %+v", a)
		}
		if a := s.ask(0, KindsOf(Evaluation), Result{Token: last.Token}); a.Kind != AnswerWait {
			t.Fatalf("a trainer that evaluates only: %+v", a)
		}
	}
	a := s.wantSet(s.ask(1, allKinds), 0)
	if a = s.ask(1, allKinds, Result{Token: a.Token}); a.Kind != AnswerEnded {
		t.Fatalf("after the prediction: %+v", a)
	}
}

func TestTasksThatNoTrainerAcceptsAreLogged(t *testing.T) {
	for name, second := range map[string]Kinds{"no trainer predicts": trainOnly, "one trainer predicts": allKinds} {
		t.Run(name, func(t *testing.T) {
			s := newSets(t, Options{Passes: 1, Sets: []string{"training", "prediction"}}, 2, setOf{SetSpec{Kind: Prediction}, 2}, setOf{SetSpec{}, 1})
			warnings := func() (n int) {
				for _, notice := range s.q.Ready().Notices {
					if notice.Warning {
						n++
						if notice.Fields["kind"] != "prediction" || notice.Fields["start"] == "" {
							t.Errorf("%+v: expected the kind, and what to start", notice)
						}
					}
				}
				return n
			}
			last := s.wantSet(s.ask(0, trainOnly), 1)
			s.ask(1, second)
			if n := warnings(); n != 0 {
				t.Errorf("%d warnings during the training, expected none", n)
			}
			want := 0
			if second == trainOnly {
				want = 1
			}
			s.ask(0, trainOnly, Result{Token: last.Token})
			s.ask(1, second)
			s.ask(0, trainOnly)
			if n := warnings(); n != want {
				t.Errorf("%d warnings while prediction tasks remain, expected %d", n, want)
			}
		})
	}
}

func TestRoundOfAnEvaluationDataset(t *testing.T) {
	s := newSets(t, Options{Passes: 1}, 2, setOf{SetSpec{}, 2}, setOf{heldOut, 2})
	train := s.wantSet(s.ask(0, allKinds), 0) // no round is open
	if tok := s.round(1); tok.Pass != 1 || s.round(1) != tok {
		t.Fatalf("round %v: expected pass 1, and the same for a second request", tok)
	}
	s.wantSet(s.ask(1, trainOnly), 0)
	first := s.wantSet(s.ask(0, allKinds, Result{Token: train.Token}), 1)
	second := s.wantSet(s.ask(1, allKinds), 1)
	if status, _ := s.q.Status(); status != Running {
		t.Fatal("an open round keeps the job open")
	}
	// The training task of the second trainer is finished last.
	var training Token
	for _, p := range s.q.PendingTasks() {
		if p.Set == 0 {
			training = p.Token
		}
	}
	if a := s.ask(1, allKinds, Result{Token: training}); a.Kind != AnswerWait {
		t.Fatalf("all training is done, the round is open: %+v", a)
	}
	if a := s.ask(0, allKinds, Result{Token: first.Token}); a.Kind != AnswerWait {
		t.Fatalf("the round has a task: %+v", a)
	}
	if a := s.ask(1, allKinds, Result{Token: second.Token}); a.Kind != AnswerEnded {
		t.Fatalf("training and round are done: %+v", a)
	}
	if !slices.ContainsFunc(s.q.Ready().Effects, func(e Effect) bool { return e == PassClosed{1, 1} }) {
		t.Error("expected the effect of the closed round")
	}
	for _, ev := range []Event{&BeginRound{Set: 0}, &BeginRound{Set: 2}, &BeginRound{Set: -1}, &BeginRound{Set: 1}} {
		if a := s.q.Apply(1, ev); a.Err == nil {
			t.Errorf("%+v: expected an error", ev)
		}
	}
}

func TestEvaluationNeverFailsOrPausesTheJob(t *testing.T) {
	s := newSets(t, Options{Passes: 1, MaxFailures: 1, MaxSetAside: 1}, 1, setOf{SetSpec{}, 1}, setOf{heldOut, 3})
	s.round(1)
	var last []Result
	for range 6 {
		a := s.wantSet(s.ask(0, allKinds, last...), 1)
		last = []Result{{Token: a.Token, Error: "damaged"}}
	}
	a := s.wantSet(s.ask(0, allKinds, last...), 0)
	if status, reason := s.q.Status(); status != Running {
		t.Fatalf("all tasks of a round are set aside: the job is %v: %s", status, reason)
	}
	if a := s.ask(0, allKinds, Result{Token: a.Token}); a.Kind != AnswerEnded {
		t.Fatalf("after the training task: %+v", a)
	}
}

// Evaluation tasks take no part in explicit commits: a finish counts immediately, a lost trainer keeps none, and no commit waits for one.
func TestEvaluationIsOutsideExplicitCommits(t *testing.T) {
	s := newSets(t, Options{Passes: 1, ExplicitCommit: true, MaxFailures: 1}, 3, setOf{SetSpec{}, 2}, setOf{heldOut, 3})
	train := s.wantSet(s.ask(0, trainOnly), 0)
	s.round(1)
	evaluated := s.wantSet(s.ask(1, KindsOf(Evaluation)), 1)
	if a := s.ask(1, KindsOf(Evaluation), Result{Token: evaluated.Token}); a.Finishes[0] != Counted || s.q.sets[1].open[0].counted != 1 {
		t.Fatalf("finish of an evaluation task without a step: %+v, %+v", a, s.q.sets[1].open[0])
	} else if a = s.ask(1, KindsOf(Evaluation), Result{Token: a.Token, Error: "damaged"}); a.Finishes[0] != Returned || a.Kind != AnswerTask {
		t.Fatalf("failure of an evaluation task: %+v: expected that the session continues", a)
	}
	both := s.wantSet(s.ask(0, KindsOf(Evaluation)), 1)
	s.q.Apply(s.q.Clock(), &Leave{s.who[0].Ordinal, s.who[0].Incarnation})
	for _, p := range s.q.PendingTasks() {
		if held := len(p.Holders) > 0; p.Token.Position == both.Token.Position && p.Set == 1 && held || p.Set == 0 && !held {
			t.Errorf("after the loss of its trainer: %+v: expected the training task to stay with it and the evaluation task to return", p)
		}
	}
	if s.q.waitsFor() != WaitRollback {
		t.Error("expected a wait for a rollback: a trainer was lost with a training task")
	}
	if a := s.q.Apply(s.q.Clock(), &Rollback{Generation: 1}); a.Err != nil {
		t.Fatal(a.Err)
	}
	if s.q.sets[1].open[0].counted != 1 {
		t.Error("a rollback took back an evaluation")
	}
	if a := s.ask(2, trainOnly); a.Kind != AnswerTask || a.Token.Position != train.Token.Position {
		t.Errorf("after the rollback: %+v", a)
	}
}

func TestEvaluatingTrainerIsNoContributor(t *testing.T) {
	s := newSets(t, Options{Passes: 1, Sync: true}, 2, setOf{SetSpec{}, 4}, setOf{heldOut, 1})
	s.round(1)
	s.wantSet(s.ask(0, allKinds), 1)
	s.wantSet(s.ask(1, allKinds), 0)
	if list, ok := s.q.Contributors(); !ok || !slices.Equal(list, []Ordinal{s.who[1].Ordinal}) {
		t.Errorf("contributors %v, %v: expected trainer %d alone", list, ok, s.who[1].Ordinal)
	}
}

// Evaluation tasks have no rank, and do not change the rank of training tasks.
func TestEvaluationIsOutsideRanks(t *testing.T) {
	s := newSets(t, Options{Passes: 1, Ranks: 2, ExplicitCommit: true, Cuts: true, Sync: true}, 2, setOf{SetSpec{}, 4}, setOf{heldOut, 2})
	s.round(1)
	s.wantSet(s.ask(1, allKinds), 1) // position 0, which would be of rank 0
	if s.q.misplaced() {
		t.Error("an evaluation task counts as a task of another rank")
	}
	a := s.wantSet(s.ask(0, trainOnly), 0)
	if a.Token.Position != 0 {
		t.Errorf("rank 0 received position %d", a.Token.Position)
	}
	if list, ok := s.q.Contributors(); ok {
		t.Errorf("contributors %v: expected none while rank 1 has not requested its task", list)
	}
}

func TestReportOfAnInvalidDataset(t *testing.T) {
	s := newSets(t, Options{}, 0, setOf{SetSpec{}, 1})
	for _, c := range []struct {
		spec SetSpec
		want error
	}{
		{SetSpec{Name: strings.Repeat("x", 64)}, ErrBadSet},
		{SetSpec{Name: "a/b"}, ErrBadSet},
		{SetSpec{Kind: 3}, ErrBadSet},
		{SetSpec{Weight: -1}, ErrBadSet},
		{SetSpec{Weight: MaxWeight + 1}, ErrBadSet},
		{SetSpec{Passes: -1}, ErrBadSet},
		{SetSpec{Kind: Evaluation, Passes: 1}, ErrBadSet},
		{SetSpec{Name: "training", Kind: Evaluation}, ErrOtherDataset},
	} {
		if a := s.q.Apply(1, &Report{SetSpec: c.spec, Digest: [32]byte{1}, Table: tableOf(t, 1)}); !errors.Is(a.Err, c.want) {
			t.Errorf("%+v: %v, expected %v", c.spec, a.Err, c.want)
		}
	}
	for i := 1; i <= MaxSets; i++ {
		a := s.q.Apply(1, &Report{SetSpec: SetSpec{Name: fmt.Sprint(i)}, Table: tableOf(t, 1)})
		if (a.Err == nil) != (i < MaxSets) {
			t.Errorf("dataset %d: %v", i, a.Err)
		}
	}
}

// Any order of events, failovers included: each task of each pass of each dataset counts once, and only training datasets have commits.
func TestSeveralDatasetsCountEachTaskOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		explicit := rapid.Bool().Draw(t, "explicit")
		opt := Options{Passes: rapid.IntRange(1, 3).Draw(t, "passes"), Rolling: rapid.Bool().Draw(t, "rolling"), MaxFailures: 2, ExplicitCommit: explicit, TimeoutMin: 10 * time.Second, FirstTimeout: 10 * time.Second}
		list := []setOf{{SetSpec{Shuffle: true, Seed: 7, Weight: 3}, rapid.IntRange(1, 9).Draw(t, "tasks")}, {heldOut, rapid.IntRange(1, 9).Draw(t, "held out")}}
		if rapid.Bool().Draw(t, "more") {
			list = append(list, setOf{SetSpec{Name: "more", Passes: 2}, rapid.IntRange(1, 9).Draw(t, "more tasks")}, setOf{SetSpec{Kind: Prediction}, 2})
		}
		s := newSets(t, opt, 3, list...)
		ledger := NewVerifier()
		roster := map[string][]byte{}
		commit := func() {
			s.q.Touch()
			r := s.q.Ready()
			for _, w := range r.Writes {
				if id, ok := strings.CutPrefix(w.Key, RosterPrefix); ok && w.Delete {
					delete(roster, id)
				} else if ok {
					roster[id] = w.Value
				}
			}
			if err := ledger.Add(s.q.Commit(), r.Entries); err != nil {
				t.Fatal(err)
			}
			if err := ledger.CrossCheck(s.q.Snapshot(1, 2)); err != nil {
				t.Fatal(err)
			}
		}
		s.q = New("job", [16]byte{1}, 7, opt)
		for i, of := range list {
			s.q.Apply(1, &Report{SetSpec: of.SetSpec, Digest: [32]byte{byte(i + 1)}, ReportID: fmt.Sprint("r", i), Table: s.tables[i]})
		}
		join := func(i int) {
			s.who[i] = s.q.Apply(s.q.Clock(), &Join{ID: fmt.Sprint("t", i)})
			if explicit {
				s.q.Apply(s.q.Clock(), &LastStep{Trainer: s.who[i].Ordinal, Incarnation: s.who[i].Incarnation})
			}
		}
		for i := range s.who {
			join(i)
		}
		commit()
		var tokens []Token
		step := uint64(0)
		t.Repeat(map[string]func(*rapid.T){
			"ask": func(t *rapid.T) {
				i := rapid.IntRange(0, 2).Draw(t, "trainer")
				kinds := Kinds(rapid.IntRange(0, 7).Draw(t, "kinds"))
				a := s.ask(i, kinds)
				if a.Kind == AnswerTask {
					if !kinds.has(a.Token.Kind) {
						t.Fatalf("a trainer that takes kinds %b received %+v", kinds, a)
					}
					tokens = append(tokens, a.Token)
				}
				commit()
			},
			"finish": func(t *rapid.T) {
				if len(tokens) == 0 {
					return
				}
				tok := rapid.SampledFrom(tokens).Draw(t, "token")
				r := Result{Token: tok}
				if rapid.IntRange(0, 4).Draw(t, "fails") == 0 {
					r.Error = "damaged"
				} else if explicit && tok.Kind == Training {
					r.Step = step + 1
				}
				s.ask(rapid.IntRange(0, 2).Draw(t, "trainer"), 0, r)
				commit()
			},
			"round": func(*rapid.T) {
				s.q.Apply(s.q.Clock(), &BeginRound{Set: 1})
				commit()
			},
			"step": func(*rapid.T) {
				if !explicit {
					return
				}
				for _, w := range s.who {
					s.q.Apply(s.q.Clock(), &StepFlushed{Trainer: w.Ordinal, Incarnation: w.Incarnation, Generation: s.q.Steps().Generation, Step: step + 1})
				}
				s.q.Apply(s.q.Clock(), &StepCommit{Generation: s.q.Steps().Generation, Step: step + 1})
				step = s.q.Steps().Step
				commit()
			},
			"join": func(t *rapid.T) {
				join(rapid.IntRange(0, 2).Draw(t, "trainer"))
				if explicit && s.q.Steps().Generation < 100 {
					s.q.Apply(s.q.Clock(), &Rollback{Generation: s.q.Steps().Generation + 1, Step: step})
					for _, w := range s.who {
						s.q.Apply(s.q.Clock(), &LastStep{Trainer: w.Ordinal, Incarnation: w.Incarnation})
					}
				}
				commit()
			},
			"time": func(t *rapid.T) {
				s.q.Apply(s.q.Clock().Add(time.Duration(rapid.IntRange(1, 12).Draw(t, "s"))*time.Second), &Tick{})
				commit()
			},
			"failover": func(t *rapid.T) {
				before := s.q.Snapshot(1, 2)
				q, err := Restore(before, maps.Clone(roster), s.tables, opt)
				if err != nil {
					t.Fatal(err)
				}
				if after := q.Snapshot(1, 2); !reflect.DeepEqual(before, after) {
					t.Fatalf("restored:\n%+v\nexpected\n%+v", after, before)
				}
				s.q = q
			},
		})
		for _, r := range ledger.Report() {
			if r.CountedTwice != 0 || r.Missing != 0 {
				t.Fatalf("%+v", r)
			}
		}
		if status, reason := s.q.Status(); status == Failed && !strings.Contains(reason, "counted nothing") {
			t.Fatalf("the job failed: %s", reason)
		}
		for _, set := range s.q.sets {
			if set.kind != Training && len(set.uncommitted) > 0 {
				t.Fatalf("dataset %s waits for a commit", set.name)
			}
		}
	})
}
