package taskqueue

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// commit has the events of one commit and the state after it.
type commit struct {
	number   uint64
	events   []LedgerEvent
	snapshot *Snapshot
}

// jobLedger runs two passes of six tasks with a commit after every event. Task 2 fails too often in the first pass.
// An operator retries the task, and it succeeds.
func jobLedger(t *testing.T) []commit {
	t.Helper()
	q := New("job", [16]byte{1}, 7, Options{Passes: 2, MaxFailures: 1})
	var commits []commit
	do := func(ev Event) Answer {
		a := q.Apply(q.Clock()+10, ev)
		f := q.Ready()
		list, err := events(f.Entries)
		if err != nil {
			t.Fatal(err)
		}
		commits = append(commits, commit{q.Commit(), list, q.Snapshot(1, 2)})
		return a
	}
	do(&Report{SetSpec: SetSpec{Seed: 42}, Digest: [32]byte{9}, ReportID: "r", Table: tableOf(t, 6)})
	j := do(&Join{ID: "a"})
	request := &Request{Trainer: j.Ordinal, Incarnation: j.Incarnation, Want: true}
	bad, retried := 2, false
	for range 100 {
		request.Seq++
		a := do(request)
		if a.Kind == AnswerEnded {
			return commits
		}
		if a.Kind != AnswerTask {
			t.Fatalf("%+v", a)
		}
		request.Finished = []Result{{Token: a.Token}}
		if a.Index == bad {
			request.Finished[0].Error = "bad"
		}
		if a.Token.Pass == 2 && a.Index == 3 && !retried {
			bad, retried = -1, true
			if r := do(&RetryAside{Index: 2}); r.Err != nil {
				t.Fatal(r.Err)
			}
		}
	}
	t.Fatal("expected the end of the job")
	return nil
}

// write encodes events like the queue.
func (c commit) write() []byte {
	var w ledgerWriter
	for _, ev := range c.events {
		s := &set{id: ev.Set, tasks: ev.Tasks, chunks: ev.Chunks, algorithm: ev.Algorithm, seed: ev.Seed, reportID: ev.ID}
		e := &entry{set: s, pass: ev.Pass, position: ev.Position, next: ev.Attempt + 1}
		tr := &trainer{ordinal: ev.Trainer, incarnation: ev.Incarnation, id: ev.ID}
		switch ev.Kind {
		case EventReported:
			w.report(s)
		case EventPassOpened:
			w.passOpened(ev.Set, ev.Pass)
		case EventPassClosed:
			w.passClosed(ev.Set, ev.Pass, ev.Counted, ev.SetAside)
		case EventDispatched, EventReturned, EventFailed, EventTimedOut:
			w.attemptEvent(ev.Kind, e, ev.Trainer, ev.Attempt)
		case EventFinished:
			w.finished(ev.Set, Token{Pass: ev.Pass, Position: ev.Position, Attempt: ev.Attempt}, tr, 0)
		case EventSetAside:
			w.setAside(e, ev.Index)
		case EventRetried:
			w.retried(ev.Set, ev.Index)
		case EventJoined:
			w.joined(tr)
		case EventLost:
			w.lost(tr)
		case EventEnded:
			w.ended(ev.Status, ev.Reason)
		}
	}
	return w.take()
}

// verify passes commits to a new verifier.
func verify(commits []commit) (*Verifier, error) {
	v := NewVerifier()
	for _, c := range commits {
		if err := v.Add(c.number, c.write()); err != nil {
			return v, err
		}
	}
	return v, nil
}

func TestVerify(t *testing.T) {
	commits := jobLedger(t)
	v := NewVerifier()
	for _, c := range commits {
		if err := v.Add(c.number, c.write()); err != nil {
			t.Fatal(err)
		}
		if err := v.CrossCheck(c.snapshot); err != nil {
			t.Fatalf("commit %d: %v", c.number, err)
		}
	}
	want := []PassReport{
		{Pass: 1, Tasks: 6, CountedOnce: 5, SetAside: 1, Redelivered: 1},
		{Pass: 2, Tasks: 6, CountedOnce: 6},
	}
	if got := v.Report(); !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v, expected %+v", got, want)
	}
	b, err := json.Marshal(v.Report()[0])
	if err != nil || string(b) != `{"set":0,"pass":1,"tasks":6,"counted_once":5,"set_aside":1,"dropped":0,"redelivered":1,"abandoned":0,"missing":0,"counted_twice":0,"unseen":false}` {
		t.Fatalf("%s, %v", b, err)
	}
}

// find returns the commit and the event of the n-th of a kind.
func find(t *testing.T, commits []commit, kind EventKind, n int) (*commit, int) {
	t.Helper()
	for i := range commits {
		for k, ev := range commits[i].events {
			if ev.Kind != kind {
				continue
			}
			if n == 0 {
				return &commits[i], k
			}
			n--
		}
	}
	t.Fatalf("no such event of kind %d", kind)
	return nil, 0
}

// The verifier counts each violation of the guarantee, whatever the queue itself recorded.
func TestVerifyCountsDamage(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(t *testing.T, commits []commit)
		want   []PassReport
	}{
		"a finish is missing": {
			func(t *testing.T, commits []commit) {
				c, k := find(t, commits, EventFinished, 1)
				c.events = slices.Delete(c.events, k, k+1)
			},
			[]PassReport{{Pass: 1, Tasks: 6, CountedOnce: 4, SetAside: 1, Redelivered: 1, Missing: 1}, {Pass: 2, Tasks: 6, CountedOnce: 6}},
		},
		"a finish is doubled": {
			func(t *testing.T, commits []commit) {
				c, k := find(t, commits, EventFinished, 1)
				c.events = slices.Insert(c.events, k, c.events[k])
			},
			[]PassReport{{Pass: 1, Tasks: 6, CountedOnce: 4, SetAside: 1, Redelivered: 1, CountedTwice: 1}, {Pass: 2, Tasks: 6, CountedOnce: 6}},
		},
		"a finish of another task": {
			func(t *testing.T, commits []commit) {
				c, k := find(t, commits, EventFinished, 6)
				before, b := find(t, commits, EventFinished, 5)
				c.events[k].Position = before.events[b].Position
			},
			[]PassReport{{Pass: 1, Tasks: 6, CountedOnce: 5, SetAside: 1, Redelivered: 1}, {Pass: 2, Tasks: 6, CountedOnce: 4, CountedTwice: 1, Missing: 1}},
		},
		"a task is set aside without an event": {
			func(t *testing.T, commits []commit) {
				c, k := find(t, commits, EventSetAside, 0)
				c.events = slices.Delete(c.events, k, k+1)
				c, k = find(t, commits, EventRetried, 0)
				c.events = slices.Delete(c.events, k, k+1)
			},
			[]PassReport{{Pass: 1, Tasks: 6, CountedOnce: 5, Redelivered: 1, Missing: 1}, {Pass: 2, Tasks: 6, CountedOnce: 6}},
		},
		"sums that match the damage": {
			func(t *testing.T, commits []commit) {
				c, k := find(t, commits, EventPassClosed, 0)
				c.events[k].Counted, c.events[k].SetAside = 6, 0
			},
			[]PassReport{{Pass: 1, Tasks: 6, CountedOnce: 5, SetAside: 1, Redelivered: 1}, {Pass: 2, Tasks: 6, CountedOnce: 6}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			commits := jobLedger(t)
			c.damage(t, commits)
			v, err := verify(commits)
			if err != nil {
				t.Fatal(err)
			}
			if got := v.Report(); !reflect.DeepEqual(got, c.want) {
				t.Fatalf("got\n%+v\nexpected\n%+v", got, c.want)
			}
		})
	}
}

// Tasks of an open pass that are still todo do not count as missing.
func TestVerifyOpenPass(t *testing.T) {
	commits := jobLedger(t)
	closed := slices.IndexFunc(commits, func(c commit) bool {
		return slices.ContainsFunc(c.events, func(ev LedgerEvent) bool { return ev.Kind == EventPassClosed })
	})
	v, err := verify(commits[:closed])
	if err != nil {
		t.Fatal(err)
	}
	want := []PassReport{{Pass: 1, Tasks: 6, CountedOnce: 4, SetAside: 1, Redelivered: 1}}
	if got := v.Report(); !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v, expected %+v", got, want)
	}
}

// Impossible events are an error with the number of the commit.
func TestVerifyRefuses(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, commits []commit) []commit{
		"a dispatch is missing": func(t *testing.T, commits []commit) []commit {
			c, k := find(t, commits, EventDispatched, 1)
			c.events = slices.Delete(c.events, k, k+1)
			return commits
		},
		"a commit comes twice": func(_ *testing.T, commits []commit) []commit { return slices.Insert(commits, 3, commits[3]) },
		"commits out of order": func(_ *testing.T, commits []commit) []commit { slices.Reverse(commits[3:6]); return commits },
		"the report is lost":   func(_ *testing.T, commits []commit) []commit { return commits[1:] },
		"a pass opens twice": func(t *testing.T, commits []commit) []commit {
			c, k := find(t, commits, EventPassOpened, 1)
			c.events = append(c.events, c.events[k])
			return commits
		},
		"a finish in a closed pass": func(t *testing.T, commits []commit) []commit {
			c, k := find(t, commits, EventFinished, 6)
			c.events[k].Pass = 1
			return commits
		},
		"a position out of range": func(t *testing.T, commits []commit) []commit {
			c, k := find(t, commits, EventDispatched, 2)
			c.events[k].Position = 6
			return commits
		},
		"another task is set aside": func(t *testing.T, commits []commit) []commit {
			c, k := find(t, commits, EventSetAside, 0)
			c.events[k].Index = 3
			return commits
		},
		"a retry of a task that is not set aside": func(t *testing.T, commits []commit) []commit {
			c, k := find(t, commits, EventRetried, 0)
			c.events[k].Index = 3
			return commits
		},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := verify(damage(t, jobLedger(t))); !errors.Is(err, ErrBadLedger) || !strings.Contains(err.Error(), "commit ") {
				t.Fatalf("expected %v with its commit, found %v", ErrBadLedger, err)
			}
		})
	}
}

// At every commit, CrossCheck finds that a ledger and a state do not match.
func TestCrossCheckFinds(t *testing.T) {
	commits := jobLedger(t)
	for i := 1; i < len(commits); i++ {
		v, err := verify(commits[:i])
		if err != nil {
			t.Fatal(err)
		}
		if err := v.CrossCheck(commits[i-1].snapshot); err != nil {
			t.Fatalf("commit %d: %v", commits[i-1].number, err)
		}
		silent := !slices.ContainsFunc(commits[i].events, func(ev LedgerEvent) bool { // events that change no count
			return ev.Kind != EventJoined && ev.Kind != EventFailed && (ev.Kind != EventDispatched || ev.Attempt == 1)
		})
		if err := v.CrossCheck(commits[i].snapshot); err == nil && !silent {
			t.Fatalf("ledger up to commit %d, state of commit %d: accepted; the events between are %+v", commits[i-1].number, commits[i].number, commits[i].events)
		}
		if i > 1 {
			if err := v.CrossCheck(commits[i-2].snapshot); err == nil {
				t.Fatalf("ledger up to commit %d, state of commit %d: accepted", commits[i-1].number, commits[i-2].number)
			}
		}
	}
}
