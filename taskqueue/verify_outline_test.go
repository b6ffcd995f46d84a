package taskqueue

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"
	"time"
)

// A verifier that resumes from an outline reports each later pass like a verifier of the whole ledger. It reports
// nothing of passes that had begun before the outline. The state agrees at each commit.
func TestResumeVerifier(t *testing.T) {
	commits := jobLedger(t)
	whole, err := verify(commits)
	if err != nil {
		t.Fatal(err)
	}
	unseen := map[int]int{}
	before := NewVerifier()
	for cut := range commits {
		encoded, err := json.Marshal(before.Outline())
		if err != nil {
			t.Fatal(err)
		}
		var outline Outline
		if err := json.Unmarshal(encoded, &outline); err != nil {
			t.Fatal(err)
		}
		v, err := ResumeVerifier(outline)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range commits[cut:] {
			if err := v.Add(c.number, c.write()); err != nil {
				t.Fatalf("resumed from commit %d: %v", outline.Commit, err)
			}
			if err := v.CrossCheck(c.snapshot); err != nil {
				t.Fatalf("resumed from commit %d to %d: %v", outline.Commit, c.number, err)
			}
		}
		reports, all := v.Report(), whole.Report()
		if len(reports) != len(all) {
			t.Fatalf("resumed from commit %d: %+v", outline.Commit, reports)
		}
		n := 0
		for i, r := range reports {
			want := all[i]
			if r.Unseen {
				n++
				want = PassReport{Set: want.Set, Pass: want.Pass, Tasks: want.Tasks, Unseen: true}
			}
			if r != want {
				t.Errorf("resumed from commit %d: %+v, expected %+v", outline.Commit, r, want)
			}
		}
		unseen[n]++
		if !reflect.DeepEqual(v.Outline(), whole.Outline()) {
			t.Errorf("resumed from commit %d: the outline is %+v, expected %+v", outline.Commit, v.Outline(), whole.Outline())
		}
		if err := before.Add(commits[cut].number, commits[cut].write()); err != nil {
			t.Fatal(err)
		}
		state := commits[cut].snapshot
		q, err := Restore(state, nil, make([]*Table, len(state.Sets)), Options{})
		if err != nil {
			t.Fatal(err)
		}
		want, got := before.Outline(), q.Outline()
		if want.Draining = nil; !reflect.DeepEqual(got, want) { // only the roster has draining trainers
			t.Errorf("commit %d: outline of the state %+v, outline of the ledger %+v", commits[cut].number, got, want)
		}
	}
	if unseen[0] == 0 || unseen[1] < 5 || unseen[2] < 5 {
		t.Errorf("expected cuts with each number of unseen passes, found %v", unseen)
	}
}

// Doubled and missing finishes after the outline are counted only in passes that began after it.
func TestResumedVerifierCountsDamage(t *testing.T) {
	commits := jobLedger(t)
	before := NewVerifier()
	for i, c := range commits {
		if c.events[0].Kind == EventDispatched && c.events[0].Pass == 1 {
			commits = commits[i:]
			break
		}
		if err := before.Add(c.number, c.write()); err != nil {
			t.Fatal(err)
		}
	}
	c, at := find(t, commits, EventFinished, 8) // in the second pass
	c.events = append(c.events, c.events[at])
	v, err := ResumeVerifier(before.Outline())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range commits {
		if err := v.Add(c.number, c.write()); err != nil {
			t.Fatal(err)
		}
	}
	if r := v.Report(); !r[0].Unseen || r[1].Unseen || r[1].CountedTwice != 1 {
		t.Errorf("%+v", r)
	}
}

func TestBadOutline(t *testing.T) {
	for name, o := range map[string]SetOutline{
		"negative":             {Tasks: -1},
		"unknown order":        {Tasks: 5, Algorithm: 9},
		"more open than begun": {Tasks: 5, Pass: 1, Open: 2},
		"no such task":         {Tasks: 5, Pass: 1, Aside: []AsideOutline{{Index: 5, Since: 1}}},
		"aside since no pass":  {Tasks: 5, Pass: 1, Aside: []AsideOutline{{Index: 4}}},
	} {
		if _, err := ResumeVerifier(Outline{Sets: []SetOutline{o}}); !errors.Is(err, ErrBadLedger) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The verifier forgets drained trainers without a session. Otherwise the verifier, and each outline in a sealed file,
// would grow with every drain of a long job.
func TestVerifierForgetsDrainedTrainersThatAreGone(t *testing.T) {
	q := New("job", [16]byte{1}, 7, Options{SessionTTL: 10 * time.Second})
	v := NewVerifier()
	now := Clock(1)
	flush := func() {
		t.Helper()
		ledger := q.Ready().Entries
		if err := v.Add(q.Commit(), ledger); err != nil {
			t.Fatal(err)
		}
	}
	apply := func(ev Event) Answer {
		t.Helper()
		a := q.Apply(now, ev)
		if a.Err != nil {
			t.Fatalf("%T: %v", ev, a.Err)
		}
		return a
	}
	for i := range 30 {
		a := apply(&Join{ID: "a"})
		apply(&Drain{ID: "a"})
		flush()
		if got := v.Outline().Draining; len(got) != 1 || got[0] != a.Ordinal {
			t.Fatalf("draining %v, expected trainer %d", got, a.Ordinal)
		}
		switch i % 3 {
		case 0:
			apply(&Leave{Trainer: a.Ordinal, Incarnation: a.Incarnation})
		case 1: // it sends nothing until its session ends
			for range 30 {
				now = now.Add(time.Second)
				apply(&Tick{})
			}
		case 2:
			apply(&Join{ID: "a"}) // a new process in its place
		}
		flush()
		if got := v.Outline().Draining; len(got) != 0 {
			t.Errorf("drain %d: expected no draining trainer without a session, found %v", i, got)
		}
	}
}
