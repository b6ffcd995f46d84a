package taskqueue

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// runningQueue returns a queue with n tasks and joined trainers.
func runningQueue(t *testing.T, opt Options, n int, ids ...string) (*Queue, []Answer) {
	t.Helper()
	q := New("job", [16]byte{1}, 7, opt)
	if a := q.Apply(1, &Report{SetSpec: SetSpec{Seed: 42}, Digest: [32]byte{9}, ReportID: "r", Table: tableOf(t, n)}); a.Err != nil {
		t.Fatal(a.Err)
	}
	var sessions []Answer
	for _, id := range ids {
		sessions = append(sessions, q.Apply(1, &Join{ID: id}))
	}
	q.Ready()
	return q, sessions
}

func ask(t *testing.T, q *Queue, who Answer, seq uint64, results ...Result) Answer {
	t.Helper()
	return q.Apply(q.Clock(), &Request{Trainer: who.Ordinal, Incarnation: who.Incarnation, Seq: seq, Finished: results, Want: true})
}

func TestReport(t *testing.T) {
	q, _ := runningQueue(t, Options{}, 3)
	if a := q.Apply(1, &Report{Digest: [32]byte{9}, Table: tableOf(t, 3)}); a.Err != nil {
		t.Errorf("the same dataset again: %v", a.Err)
	}
	if a := q.Apply(1, &Report{Digest: [32]byte{8}, Table: tableOf(t, 3)}); a.Err == nil {
		t.Error("report of another dataset: expected an error")
	}
	if q.dirty {
		t.Error("repeated report: expected no commit")
	}
	if _, ok := q.SetDigest(1); ok {
		t.Error("report of a second dataset: expected an error")
	}
}

// A pass with the right count and wrong sums was counted wrongly, so the job must fail.
func TestWrongSumsFailJob(t *testing.T) {
	q, sessions := runningQueue(t, Options{Passes: 2}, 2, "a")
	first := ask(t, q, sessions[0], 1)
	second := ask(t, q, sessions[0], 2, Result{Token: first.Token})
	q.Ready()
	s := q.Snapshot(1, 2)
	s.Sets[0].Open[0].Sum2++
	damaged, err := Restore(s, q.encodedRoster(), []*Table{tableOf(t, 2)}, Options{Passes: 2})
	if err != nil {
		t.Fatal(err)
	}
	if a := ask(t, damaged, sessions[0], 3, Result{Token: second.Token}); a.Kind != AnswerFailed {
		t.Fatalf("answer %+v", a)
	}
	if status, reason := damaged.Status(); status != Failed || !strings.Contains(reason, "does not add up") {
		t.Fatalf("%v: %s", status, reason)
	}
}

func TestSumsInClosedForm(t *testing.T) {
	var sum1, sum2 uint64
	for n := range uint64(3000) {
		if sumTo(n) != sum1 || squaresTo(n) != sum2 {
			t.Fatalf("0..%d: %d, %d; expected %d, %d", n, sumTo(n), squaresTo(n), sum1, sum2)
		}
		sum1 += n
		sum2 += n * n
	}
	// Above 64 bits both values wrap the same way: the step from n to n+1 adds n and its square.
	for _, n := range []uint64{1 << 21, 1<<22 + 1, 1<<32 - 1, 1<<40 - 1, 1<<40 + 2} {
		if sumTo(n+1)-sumTo(n) != n || squaresTo(n+1)-squaresTo(n) != n*n {
			t.Fatalf("step at %d", n)
		}
	}
}

func TestQueueClockNeverDecreases(t *testing.T) {
	q, sessions := runningQueue(t, Options{}, 2, "a")
	q.Apply(5000, &Tick{})
	q.Apply(10, &Heartbeat{Trainer: sessions[0].Ordinal, Incarnation: sessions[0].Incarnation})
	if q.Clock() != 5000 {
		t.Fatalf("clock %d after an event of 10", q.Clock())
	}
}

// One tick writes at most as many keys as fit a transaction. Later ticks end the remaining sessions.
func TestTickIsBounded(t *testing.T) {
	var ids []string
	for i := range 500 {
		ids = append(ids, fmt.Sprint("trainer-", i))
	}
	q, sessions := runningQueue(t, Options{MaxFailures: 1}, 500, ids...)
	for _, s := range sessions {
		if a := ask(t, q, s, 1); a.Kind != AnswerTask {
			t.Fatalf("%+v", a)
		}
	}
	q.Ready()
	for ticks := 0; q.Trainers() > 0; ticks++ {
		before := q.Trainers()
		q.Apply(q.Clock().Add(time.Minute), &Tick{})
		if n := len(q.Ready().Writes); n > sessionKeysPerTick+deadlineKeysPerTick+2*maxHeldJoined {
			t.Fatalf("%d keys in one tick", n)
		}
		if q.Trainers() == before || ticks > 20 {
			t.Fatalf("expected no trainer after %[2]d ticks, found %[1]d", q.Trainers(), ticks)
		}
	}
}

// Hold stops dispatches. Finishes and repeated answers still work.
func TestHold(t *testing.T) {
	q, sessions := runningQueue(t, Options{}, 3, "a")
	first := ask(t, q, sessions[0], 1)
	q.Hold(true)
	if q.Dispatchable() {
		t.Error("dispatchable while on hold")
	}
	if a := ask(t, q, sessions[0], 1); a.Token != first.Token {
		t.Errorf("repeated request: got %+v", a)
	}
	if a := ask(t, q, sessions[0], 2, Result{Token: first.Token}); a.Finishes[0] != Counted || a.Kind != AnswerWait {
		t.Errorf("finish and ask: %+v", a)
	}
	q.Hold(false)
	if a := ask(t, q, sessions[0], 3); a.Kind != AnswerTask || !q.Dispatchable() {
		t.Errorf("after the hold: got %+v", a)
	}
}

// A parked request is repeated only if its answer may differ.
func TestDispatchable(t *testing.T) {
	q, sessions := runningQueue(t, Options{Passes: 1}, 1, "a", "b")
	if !q.Dispatchable() || q.Active() {
		t.Error("before the first dispatch: expected a dispatchable task")
	}
	a := ask(t, q, sessions[0], 1)
	if q.Dispatchable() || !q.Active() {
		t.Error("while the last task is pending: expected no dispatchable task")
	}
	if runners := q.Runners(); !slices.Equal(runners, []Ordinal{sessions[0].Ordinal}) {
		t.Errorf("runners %v", runners)
	}
	q.Apply(1, &Undelivered{sessions[0].Ordinal, sessions[0].Incarnation, a.Token})
	if !q.Dispatchable() || !q.Active() {
		t.Error("after the task returned: expected a dispatchable task")
	}
	a = ask(t, q, sessions[1], 1)
	ask(t, q, sessions[1], 2, Result{Token: a.Token})
	if status, _ := q.Status(); !q.Dispatchable() || q.Active() || status != Ended {
		t.Error("after the end of the job: expected an answer for parked requests")
	}
}

// A synchronous step waits for the joined trainers that run a task. It does not wait for trainers that only
// prefetched, for idle trainers, or for connections without a session.
func TestRunners(t *testing.T) {
	q, sessions := runningQueue(t, Options{}, 5, "a", "b", "idle")
	plain := q.Apply(1, &PlainAsk{Connection: "10.0.0.9:4711", Want: true})
	ask(t, q, sessions[1], 1)
	ask(t, q, sessions[0], 1)
	if plain.Kind != AnswerTask || len(q.PendingTasks()) != 3 {
		t.Fatalf("%+v, %+v", plain, q.PendingTasks())
	}
	if runners := q.Runners(); !slices.Equal(runners, []Ordinal{sessions[0].Ordinal, sessions[1].Ordinal}) {
		t.Errorf("runners %v, expected %d and %d", runners, sessions[0].Ordinal, sessions[1].Ordinal)
	}
}

func TestOverview(t *testing.T) {
	q := goldenQueue(t)
	o := q.Overview()
	s := o.Sets[0]
	if s.Todo+s.Pending+s.Retry+s.Done+s.SetAside != s.Tasks || s.Pending != 2 || s.Retry != 1 || s.SetAside != 2 || s.Done != 3 || s.Pass != 1 || s.Records != 80 {
		t.Errorf("%+v", s)
	}
	if len(o.Trainers) != 4 || o.Trainers[3].Joined || !slices.Equal(o.Trainers[2].Tasks, o.Trainers[3].Tasks) {
		t.Errorf("%+v", o.Trainers)
	}
	tasks := q.PendingTasks()
	if len(tasks) != 3 || len(tasks[2].Holders) != 2 || tasks[1].Failures != 1 || tasks[1].Losses != 1 {
		t.Errorf("%+v", tasks)
	}
}

// The last error of a set-aside task is cut to 256 bytes, at a character boundary.
func TestLongErrors(t *testing.T) {
	q, sessions := runningQueue(t, Options{MaxFailures: 1}, 2, "a")
	for i := range uint64(2) {
		a := ask(t, q, sessions[0], 2*i+1)
		q.Apply(1, &Request{Trainer: sessions[0].Ordinal, Incarnation: sessions[0].Incarnation, Seq: 2*i + 2, Finished: []Result{{Token: a.Token, Error: strings.Repeat("ü", 1000) + "!"}}})
	}
	for _, w := range q.Ready().Writes {
		if w.Key != AsideKey(0, 0) {
			continue
		}
		var d AsideDetail
		if err := json.Unmarshal(w.Value, &d); err != nil || d.Error != strings.Repeat("ü", maxErrorText/2) || d.Holder != "a" || d.Failures != 2 {
			t.Fatalf("%s, %v", w.Value, err)
		}
		return
	}
	t.Fatal("no detail was written")
}

func TestValidate(t *testing.T) {
	if err := (Options{}).Validate(); err != nil {
		t.Error(err)
	}
	for field, o := range map[string]Options{
		"passes":             {Passes: -1},
		"task-max-failures":  {MaxFailures: -1},
		"max-set-aside":      {MaxSetAside: -1},
		"task-timeout-min":   {TimeoutMin: -1, TimeoutMax: -1},
		"task-timeout-max":   {TimeoutMax: time.Microsecond},
		"task-timeout-first": {FirstTimeout: -1},
		"session-ttl":        {SessionTTL: 1},
		"connection-grace":   {Grace: -time.Second},
		"expected at most":   {TimeoutMin: 2 * time.Hour},
	} {
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// With ten thousand pending tasks the state stays small for any number of tasks: its size is O(pending).
func TestStateIsSmall(t *testing.T) {
	for _, tasks := range []int{1000, 1_000_000} {
		q := New("job", [16]byte{1}, 7, Options{Rolling: true})
		table := NewTable(0)
		table.sizes = make([]uint32, tasks)
		q.Apply(1, &Report{SetSpec: SetSpec{Shuffle: true, Seed: 42}, Digest: [32]byte{9}, ReportID: "r", Table: table})
		for i := range 64 {
			who := q.Apply(1, &Join{ID: fmt.Sprint(i)})
			ask(t, q, who, 1)
		}
		q.Ready()
		if n := len(q.Snapshot(1, 2).Sets[0].Live); n > 16*64 {
			t.Errorf("%d tasks: found %d bytes of state for 64 pending tasks", tasks, n)
		}
	}
}

// The notice at the end of a job has a reason only if one exists. It reports set-aside tasks as an error.
func TestJobEndNotice(t *testing.T) {
	for failures, want := range []Notice{
		0: {What: "job ended", Fields: map[string]any{}},
		1: {Error: true, What: "job ended", Fields: map[string]any{"set_aside": 1}},
	} {
		q := datasetQueue(t, 2, Options{Passes: 1, MaxFailures: 1})
		a := q.Apply(1, &Join{ID: "a"})
		send := func(seq uint64, finished ...Result) Answer {
			return q.Apply(1, &Request{Trainer: a.Ordinal, Incarnation: a.Incarnation, Seq: seq, Finished: finished, Want: true})
		}
		task := send(1)
		for n := range 2 * failures {
			task = send(uint64(2+n), Result{Token: task.Token, Error: "bad"})
		}
		for seq := uint64(4); task.Kind == AnswerTask; seq++ {
			task = send(seq, Result{Token: task.Token})
		}
		notices := q.Ready().Notices
		if got := notices[len(notices)-1]; !reflect.DeepEqual(got, want) {
			t.Errorf("after %d failures: %+v, expected %+v", 2*failures, got, want)
		}
	}
}
