package evaluation

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"trainmaster/master/evaluation/metric"
	"trainmaster/taskqueue"
)

var update = flag.Bool("update", false, "write the golden file")

func text(decisions []Decision) (list []string) {
	for _, d := range decisions {
		list = append(list, fmt.Sprintf("%s %d %q", d.Action, d.Round.Number, d.Round.Model))
	}
	return list
}

// Histories with rollbacks, commands, merged triggers, late and repeated results, refused commits and restarts.
func TestDecisionsAgreeWithNaiveModel(t *testing.T) {
	scores := rapid.SampledFrom([]float64{0.5, 0.6, 0.7, 0.8, 0.9, 1.5, 4})
	rapid.Check(t, func(t *rapid.T) {
		config := Config{
			Every: Every{
				Steps:  rapid.SampledFrom([]uint64{0, 1, 7, 20}).Draw(t, "steps"),
				Passes: rapid.Uint64Range(0, 3).Draw(t, "passes"),
				Time:   time.Duration(rapid.SampledFrom([]int{0, 1, 50}).Draw(t, "time")) * time.Millisecond,
			},
			Best:     Goal{Figure: "score", Max: rapid.Bool().Draw(t, "max")},
			KeepBest: rapid.IntRange(1, 3).Draw(t, "keep"),
			Patience: rapid.SampledFrom([]int{0, 0, 2, 5}).Draw(t, "patience"),
			Diverged: rapid.SampledFrom([]float64{0, 0, 2}).Draw(t, "diverged"),
			Loss:     "loss",
		}
		if rapid.IntRange(0, 3).Draw(t, "with target") == 0 {
			target := scores.Draw(t, "target")
			config.Target = &target
		}
		var s State
		model := naive{config: config, alive: map[string]Round{}, pending: map[string]bool{}}
		now, in := taskqueue.Clock(1), Input{}
		for range rapid.IntRange(1, 80).Draw(t, "inputs") {
			now += taskqueue.Clock(rapid.IntRange(0, 30).Draw(t, "wait"))
			in.Command = rapid.IntRange(0, 9).Draw(t, "command") == 0
			in.Closed = nil
			switch rapid.IntRange(0, 7).Draw(t, "event") {
			case 0, 1, 2:
				in.Version += rapid.Uint64Range(0, 12).Draw(t, "more")
			case 3:
				in.Model = fmt.Sprint("set-", rapid.IntRange(0, 9).Draw(t, "model"))
			case 4:
				in.Passes++
			case 5: // rollback
				in.Version -= rapid.Uint64Range(0, in.Version).Draw(t, "back")
			case 6:
				in.Closed = &Closed{Round: s.Rounds + rapid.Uint64Range(0, 1).Draw(t, "round")}
				for _, name := range []string{"loss", "other", "score"} {
					if rapid.IntRange(0, 9).Draw(t, "present") > 0 {
						in.Closed.Figures = append(in.Closed.Figures, metric.Figure{Name: name, Value: scores.Draw(t, name)})
					}
				}
				if rapid.IntRange(0, 30).Draw(t, "NaN") == 0 {
					in.Closed.NotFinite = "loss"
				}
			case 7:
				in.Ending = in.Ending || rapid.IntRange(0, 9).Draw(t, "ending") == 0
			}
			before := s.Encode()
			restored, err := Decode(before)
			if err != nil {
				t.Fatalf("%v: %s", err, before)
			}
			next, decisions, err := Decide(now, config, s, in)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(s.Encode(), before) {
				t.Fatal("the previous state has changed")
			}
			again, repeated, err := Decide(now, config, restored, in)
			if err != nil || !slices.EqualFunc(decisions, repeated, sameDecision) || !bytes.Equal(again.Encode(), next.Encode()) {
				t.Fatalf("a restart changed the decisions: %v, %v, %v", decisions, repeated, err)
			}
			s = next
			if rapid.Bool().Draw(t, "restart") {
				s = again
			}
			if found, want := text(decisions), model.step(now, in); !slices.Equal(found, want) {
				t.Fatalf("expected %q, found %q", want, found)
			}
			for _, d := range decisions {
				if d.Reason == "" {
					t.Fatalf("no reason: %+v", d)
				}
			}
			spared := []string{}
			for name := range model.alive {
				spared = append(spared, name)
			}
			if model.open != nil {
				spared = append(spared, model.open.Model)
			}
			slices.Sort(spared)
			if found := s.Spared(); !slices.Equal(found, slices.Compact(spared)) {
				t.Fatalf("spared models: expected %v, found %v", spared, found)
			}
			if s.Stop != model.stop {
				t.Fatalf("stop: expected %q, found %q", model.stop, s.Stop)
			}
			if may := model.open == nil && (model.stop != Continue || model.ending && len(model.pending) == 0); s.MayEnd() != may {
				t.Fatalf("job may end: expected %v, found %v", may, s.MayEnd())
			}
		}
	})
}

func sameDecision(a, b Decision) bool {
	return a.Action == b.Action && a.Reason == b.Reason && text([]Decision{a})[0] == text([]Decision{b})[0]
}

// machine is a state with its settings.
type machine struct {
	t      *testing.T
	config Config
	State
}

// at passes an input, and returns "action round: reason" of each decision.
func (m *machine) at(now taskqueue.Clock, in Input) string {
	m.t.Helper()
	next, decisions, err := Decide(now, m.config, m.State, in)
	if err != nil {
		m.t.Fatal(err)
	}
	m.State = next
	var list []string
	for _, d := range decisions {
		list = append(list, fmt.Sprintf("%s %d: %s", d.Action, d.Round.Number, d.Reason))
	}
	return strings.Join(list, " | ")
}

func (m *machine) want(found, want string) {
	m.t.Helper()
	if found != want {
		m.t.Errorf("expected %q, found %q", want, found)
	}
}

func closed(round uint64, figures ...any) *Closed {
	c := &Closed{Round: round}
	for i := 0; i < len(figures); i += 2 {
		c.Figures = append(c.Figures, metric.Figure{Name: figures[i].(string), Value: figures[i+1].(float64)})
	}
	return c
}

func TestRoundsOfAJob(t *testing.T) {
	every, err := ParseEvery("500steps,1pass,10m")
	if err != nil {
		t.Fatal(err)
	}
	m := machine{t: t, config: Config{Every: every, Best: Goal{"accuracy", true}}}
	m.want(m.at(1, Input{Version: 1400}), "") // the first observation: versions continue from the manifest
	m.want(m.at(10, Input{Version: 1499, Model: "set-1"}), "")
	m.want(m.at(20, Input{Version: 1501, Model: "set-2"}), "begin 1: every 500 steps (version 1501, 0 passes)")
	// Triggers during the round merge.
	m.want(m.at(30, Input{Version: 2000, Model: "set-2", Passes: 1}), "")
	m.want(m.at(600_000, Input{Version: 2001, Model: "set-3", Passes: 1, Command: true}), "")
	m.want(m.at(600_001, Input{Version: 2002, Model: "set-4", Passes: 1, Closed: closed(1, "accuracy", 0.75)}),
		"close 1: accuracy is 0.75 | keep 1: number 1 of the best 1 by accuracy:max | "+
			"begin 2: every 500 steps, every 1 pass, every 10m0s, command (version 2002, 1 pass)")
	if found := m.Spared(); !slices.Equal(found, []string{"set-2", "set-4"}) {
		t.Errorf("spared %v", found)
	}
	m.want(m.at(600_002, Input{Version: 2002, Model: "set-4", Passes: 1, Closed: closed(1, "accuracy", 0.1)}), "") // a repetition
	m.want(m.at(600_003, Input{Version: 2003, Model: "set-4", Passes: 2, Closed: closed(2, "accuracy", 0.875)}),
		"close 2: accuracy is 0.875 | keep 2: number 1 of the best 1 by accuracy:max | drop 1: 1 models are better by accuracy:max than 0.75 | "+
			"begin 3: every 1 pass (version 2003, 2 passes)")
	m.want(m.at(600_004, Input{Version: 1600, Model: "set-2", Passes: 2, Closed: closed(3)}), "close 3: no figure accuracy") // rollback
	m.want(m.at(600_005, Input{Version: 2000, Model: "set-5", Passes: 2}), "begin 4: every 500 steps (version 2000, 2 passes)")
	m.want(m.at(600_006, Input{Version: 2000, Model: "set-5", Passes: 2, Ending: true}), "")
	if m.MayEnd() {
		t.Error("the job may end during a round")
	}
	m.want(m.at(600_007, Input{Version: 2000, Model: "set-5", Passes: 2, Ending: true, Closed: closed(4, "accuracy", 0.5)}),
		"close 4: accuracy is 0.5 | skip 0: round 4 has evaluated the last model, of version 2000")
	if best, ok := m.Best(); !m.MayEnd() || !ok || best.Model != "set-4" || best.Version != 2002 {
		t.Errorf("best %+v", best)
	}
}

// The last round takes longer than the interval: no other round of the same model keeps the job open.
func TestTimeBeginsNoRoundAfterTheLast(t *testing.T) {
	every, err := ParseEvery("10m")
	if err != nil {
		t.Fatal(err)
	}
	m := machine{t: t, config: Config{Every: every}}
	m.want(m.at(1, Input{Version: 7, Model: "set-1"}), "")
	m.want(m.at(2, Input{Version: 7, Model: "set-1", Passes: 1, Ending: true}), "begin 1: end of the job (version 7, 1 pass)")
	m.want(m.at(600_001, Input{Version: 7, Model: "set-1", Passes: 1, Ending: true}), "")
	m.want(m.at(1_200_001, Input{Version: 7, Model: "set-1", Passes: 1, Closed: closed(1, "loss", 0.5)}), "close 1: loss is 0.5 | keep 1: number 1 of the best 1 by loss:min")
	m.want(m.at(1_800_001, Input{Version: 7, Model: "set-1", Passes: 1, Ending: true}), "")
	if !m.MayEnd() {
		t.Errorf("expected that the job may end, found %+v", m.Due)
	}
}

func TestReasonsToEndTheJob(t *testing.T) {
	half := 0.5
	for name, c := range map[string]struct {
		config Config
		rounds []*Closed
		stop   Stop
		want   string
	}{
		"target":            {Config{Target: &half}, []*Closed{closed(1, "loss", 0.6), closed(2, "loss", 0.5)}, TargetReached, "end 2: loss is 0.5, and the target is 0.5"},
		"target of a max":   {Config{Target: &half, Best: Goal{"auc", true}}, []*Closed{closed(1, "auc", 0.49), closed(2, "auc", 0.625)}, TargetReached, "end 2: auc is 0.625, and the target is 0.5"},
		"patience":          {Config{Patience: 2}, []*Closed{closed(1, "loss", 0.5), closed(2, "loss", 0.5), closed(3), closed(4, "loss", 0.75)}, NoProgress, "end 4: no better loss:min in 2 rounds: 0.5 in round 1"},
		"factor":            {Config{Diverged: 3}, []*Closed{closed(1, "loss", 0.5), closed(2, "loss", 1.5), closed(3, "loss", 1.75)}, Diverged, "end 3: loss is 1.75, more than 3 times the lowest, 0.5"},
		"factor, other way": {Config{Diverged: 3}, []*Closed{closed(1, "loss", 1.75), closed(2, "loss", 0.5), closed(3, "loss", 1.5)}, Continue, ""},
		"lowest loss is 0":  {Config{Diverged: 3}, []*Closed{closed(1, "loss", 0.0), closed(2, "loss", 0.5)}, Continue, ""},
		"NaN":               {Config{}, []*Closed{{Round: 1, NotFinite: "loss"}}, Diverged, "end 1: loss is not a finite number"},
		"nothing":           {Config{}, []*Closed{closed(1, "loss", 0.5), closed(2, "loss", 50.0)}, Continue, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := machine{t: t, config: c.config}
			found := ""
			for i, r := range c.rounds {
				m.at(taskqueue.Clock(i), Input{Model: fmt.Sprint("set-", i), Command: true})
				found = m.at(taskqueue.Clock(i), Input{Model: "set-x", Closed: r})
			}
			if m.Stop != c.stop || !strings.HasSuffix(found, c.want) {
				t.Errorf("expected %q with %q, found %q with %q", c.stop, c.want, m.Stop, found)
			}
			if c.stop != Continue {
				m.want(m.at(100, Input{Model: "set-y", Command: true, Ending: true}), "")
				if !m.MayEnd() {
					t.Error("the job may not end")
				}
			}
		})
	}
}

func TestRoundWaitsForAModel(t *testing.T) {
	m := machine{t: t}
	m.want(m.at(1, Input{Command: true}), "")
	m.want(m.at(2, Input{Version: 3, Model: "set-1"}), "begin 1: command (version 3, 0 passes)")
	m = machine{t: t}
	m.want(m.at(1, Input{Ending: true}), "skip 0: no model at the end of the job")
	if !m.MayEnd() {
		t.Error("a job without a model may not end")
	}
}

// The state is stored with a commit only if it changes.
func TestObservationWithoutTriggerLeavesStateUnchanged(t *testing.T) {
	m := machine{t: t, config: Config{Every: Every{Steps: 100, Passes: 2, Time: time.Second}}}
	m.at(1, Input{Version: 1})
	before := m.Encode()
	for i := range 98 {
		m.at(taskqueue.Clock(2+i), Input{Version: uint64(2 + i), Passes: 1, Model: "set-1"})
	}
	if found := m.Encode(); !bytes.Equal(found, before) {
		t.Errorf("expected %s, found %s", before, found)
	}
}

func TestHistoryIsBounded(t *testing.T) {
	m := machine{t: t, config: Config{KeepBest: MaxKept}}
	long := strings.Repeat("\x00", MaxModel-3)
	for i := range uint64(3 * MaxHistory) {
		m.at(1, Input{Model: fmt.Sprintf("%s%03d", long, i), Command: true})
		m.at(1, Input{Model: "next", Closed: closed(i+1, "loss", -math.MaxFloat64/float64(i+1))})
	}
	b := m.Encode()
	if len(m.History) != MaxHistory || len(m.Kept) != MaxKept || len(b) > MaxBytes {
		t.Errorf("%d rounds, %d kept, %d bytes", len(m.History), len(m.Kept), len(b))
	}
	if _, err := Decode(b); err != nil {
		t.Error(err)
	}
}

func TestBadInputIsRefused(t *testing.T) {
	for _, in := range []Input{
		{Model: "\xff"}, {Model: strings.Repeat("x", MaxModel+1)}, {Closed: closed(1, "loss", math.NaN())}, {Closed: closed(1, "loss", math.Inf(1))},
	} {
		if _, decisions, err := Decide(1, Config{}, State{}, in); !errors.Is(err, ErrBadInput) || len(decisions) > 0 {
			t.Errorf("%+v: found %v, %v", in, decisions, err)
		}
	}
}

// The figures of a round of a trainer are not compared with a target, other rounds or the lowest loss.
func TestRoundOfATrainerIsNotRanked(t *testing.T) {
	target := 0.9
	m := machine{t: t, config: Config{Every: Every{Passes: 1}, Best: Goal{"accuracy", true}, Target: &target, Patience: 1, Diverged: 2}}
	m.want(m.at(1, Input{}), "")
	m.want(m.at(2, Input{Trainer: "w"}), "begin 1: command (version 0, 0 passes)") // without a model of the job
	if r := m.Open; r.Trainer != "w" || r.Model != "" || len(m.Spared()) > 0 {
		t.Errorf("open %+v, spared %v", r, m.Spared())
	}
	m.want(m.at(3, Input{Passes: 1, Model: "set-1", Trainer: "v"}), "") // both wait for the open round
	if again, err := Decode(m.Encode()); err != nil || again.Open.Trainer != "w" || again.Due.Trainer != "v" {
		t.Errorf("decoded %+v, %v", again, err)
	}
	best := &Closed{Round: 1, Figures: []metric.Figure{{Name: "accuracy", Value: 1}, {Name: "loss", Value: 0.001}}, NotFinite: "loss"}
	m.want(m.at(4, Input{Passes: 1, Model: "set-1", Closed: best}), "close 1: of trainer w")
	m.want(m.at(4, Input{Passes: 1, Model: "set-1"}), "begin 2: command (version 0, 1 pass)") // a rule can have ended the job with round 1
	m.want(m.at(5, Input{Passes: 1, Model: "set-1", Closed: &Closed{Round: 2, Outcome: "trainer v: it was lost"}}),
		"close 2: trainer v: it was lost | begin 3: every 1 pass (version 0, 1 pass)")
	m.want(m.at(6, Input{Passes: 1, Model: "set-1", Closed: &Closed{Round: 3, Figures: []metric.Figure{{Name: "accuracy", Value: 0.5}, {Name: "loss", Value: 1}}}}),
		"close 3: accuracy is 0.5 | keep 3: number 1 of the best 1 by accuracy:max")
	m.want(m.at(7, Input{Passes: 1, Model: "set-1", Trainer: "w", Gone: "no such trainer"}), "skip 0: trainer w: no such trainer")
	m.want(m.at(8, Input{Passes: 1, Model: "set-1", Trainer: "w"}), "begin 4: command (version 0, 1 pass)")
	m.want(m.at(9, Input{Passes: 1, Model: "set-1", Ending: true, Closed: closed(4, "accuracy", 0.1)}),
		"close 4: of trainer w | skip 0: round 3 has evaluated the last model, of version 0")
	if best, _ := m.Best(); m.Stop != Continue || best.Number != 3 || m.Since != 0 || *m.Lowest != 1 || !m.MayEnd() {
		t.Errorf("state %+v", m.State)
	}
}

// goldenState has a value in each field.
func goldenState(t *testing.T) State {
	half := 0.5
	m := machine{t: t, config: Config{KeepBest: 2, Target: &half, Every: Every{Steps: 10, Passes: 1, Time: time.Second}}}
	m.at(1, Input{Version: 5})
	m.at(2, Input{Version: 12, Passes: 1, Model: "set-1"})
	m.at(3, Input{Version: 12, Passes: 1, Model: "set-1", Closed: closed(1, "loss", 0.75)})
	m.at(1004, Input{Version: 12, Passes: 1, Model: "set-2"})
	m.at(1005, Input{Version: 13, Passes: 1, Model: "set-2", Closed: closed(2, "loss", 1.0)})
	m.at(1006, Input{Version: 13, Passes: 1, Model: "set <3>", Command: true})
	m.at(2007, Input{Version: 20, Passes: 2, Model: "set-4", Command: true, Ending: true})
	m.State.Due.End, m.State.Due.Trainer = true, "worker-3"
	m.State.History[0] = Round{Number: 1, Version: 12, Trainer: "worker-1", Begin: 2, End: 3}
	m.State.Stop, m.State.Ended = NoProgress, 2007
	return m.State
}

func TestGoldenState(t *testing.T) {
	const file = "testdata/state.golden"
	found := goldenState(t).Encode()
	if *update {
		if err := os.WriteFile(file, append(found, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(found)+"\n" != string(want) {
		t.Errorf("expected\n%s, found\n%s", want, found)
	}
}

func TestDecodeRefusesOtherStates(t *testing.T) {
	good := string(goldenState(t).Encode())
	if _, err := Decode([]byte(good)); err != nil {
		t.Fatal(err)
	}
	replace := func(from, to string) string {
		if !strings.Contains(good, from) {
			t.Fatalf("%s is not in %s", from, good)
		}
		return strings.Replace(good, from, to, 1)
	}
	for name, c := range map[string]struct {
		b     string
		want  error
		words string
	}{
		"newer":             {`{"format":2,"other":{}}`, ErrNewer, "expected at most 1, found 2"},
		"no format":         {`{}`, ErrDamaged, "the form that this version writes"},
		"not JSON":          {`x`, ErrDamaged, "invalid character"},
		"cut":               {good[:len(good)-1], ErrDamaged, "unexpected end"},
		"unknown field":     {replace(`"begun"`, `"more":1,"begun"`), ErrDamaged, "unknown, repeated or reordered fields"},
		"repeated field":    {replace(`"begun":true`, `"begun":true,"begun":true`), ErrDamaged, "repeated"},
		"space":             {good + " ", ErrDamaged, "form"},
		"wrong type":        {replace(`"begun":true`, `"begun":1`), ErrDamaged, "cannot unmarshal"},
		"number of a round": {replace(`"open":{"number":3`, `"open":{"number":4`), ErrDamaged, "open round: expected number 3 with a model, found 4"},
		"history":           {replace(`"history":[{"number":1`, `"history":[{"number":2`), ErrDamaged, "history: expected round 1 with a model, found 2"},
		"kept":              {replace(`"kept":[{"number":1`, `"kept":[{"number":9`), ErrDamaged, "kept round 9: expected a round up to 2"},
		"stop":              {replace(`"stop":"no-progress"`, `"stop":"other"`), ErrDamaged, `stop: found "other"`},
		"since":             {replace(`"since":1`, `"since":-1`), ErrDamaged, "expected 0 or more, found -1"},
		"large":             {strings.Repeat(" ", MaxBytes+1), ErrDamaged, "expected at most 2097152 bytes, found 2097153"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Decode([]byte(c.b)); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.words) {
				t.Errorf("expected %v with %q, found %v", c.want, c.words, err)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"format":1}`))
	golden, err := os.ReadFile("testdata/state.golden")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(bytes.TrimSpace(golden))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Decode(b)
		if err != nil {
			return
		}
		if !bytes.Equal(s.Encode(), b) {
			t.Fatalf("expected %s, found %s", b, s.Encode())
		}
		next, _, err := Decide(1, Config{Diverged: 2, Patience: 1}, s, Input{Model: "m", Command: true, Closed: closed(s.Rounds+1, "loss", 1.0)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(next.Encode()); err != nil && s.Rounds < math.MaxUint64-1 {
			t.Fatalf("%v: %s", err, next.Encode())
		}
	})
}
