package taskqueue

import (
	"errors"
	"maps"
	"math"
	"testing"
)

// history is a queue with its ledger. It commits after each event.
type history struct {
	t        *testing.T
	q        *Queue
	verifier *Verifier
	ledger   []ledgerEntry
	tokens   map[Token]bool // every dispatched token
	newest   uint64         // incarnation
}

type ledgerEntry struct {
	commit uint64
	events []byte
}

func (h *history) do(ev Event) Answer {
	h.t.Helper()
	a := h.q.Apply(h.q.Clock()+10, ev)
	h.commit()
	if a.Kind == AnswerTask {
		h.tokens[a.Token] = true
	}
	h.newest = max(h.newest, a.Incarnation)
	return a
}

func (h *history) commit() {
	h.t.Helper()
	if f := h.q.Ready(); len(f.Entries) > 0 {
		h.add(ledgerEntry{h.q.Commit(), f.Entries})
	}
	if err := h.verifier.CrossCheck(h.q.Snapshot(1, 2)); err != nil {
		h.t.Fatal(err)
	}
}

func (h *history) add(r ledgerEntry) {
	h.t.Helper()
	h.ledger = append(h.ledger, r)
	if err := h.verifier.Add(r.commit, r.events); err != nil {
		h.t.Fatal(err)
	}
}

// work lets trainers join and finish the given number of tasks. It returns their remaining tasks.
func (h *history) work(tasks int, ids ...string) (held map[Token]Request) {
	h.t.Helper()
	held = map[Token]Request{}
	var requests []Request
	for _, id := range ids {
		a := h.do(&Join{ID: id})
		requests = append(requests, Request{Trainer: a.Ordinal, Incarnation: a.Incarnation, Want: true})
	}
	for len(requests) > 0 {
		r := requests[0]
		requests = requests[1:]
		if len(r.Finished) > 0 {
			delete(held, r.Finished[0].Token)
			tasks--
		}
		if tasks < 0 {
			continue
		}
		r.Seq++
		r.Ack = r.Seq
		a := h.do(&r)
		if a.Kind != AnswerTask {
			continue
		}
		held[a.Token] = r
		if tasks >= len(held) {
			r.Finished = []Result{{Token: a.Token}}
			requests = append(requests, r)
		}
	}
	return held
}

// A job is restored from a backup while the original job continues. Neither accepts tokens or sessions of the other,
// and each task of the restored job counts once.
func TestRevive(t *testing.T) {
	table := tableOf(t, 20)
	h := &history{t: t, q: New("old", [16]byte{1}, 7, Options{Passes: 2}), verifier: NewVerifier(), tokens: map[Token]bool{}}
	h.do(&Report{SetSpec: SetSpec{Shuffle: true, Seed: 42}, ReportID: "r", Table: table})
	held := h.work(9, "a", "b", "c")
	h.do(&SaveModel{Trainer: 1, Incarnation: held[anyOf(held)].Incarnation, Lease: 60_000})
	if len(held) == 0 {
		t.Fatal("expected pending tasks, found none")
	}
	backup, roster := h.q.Snapshot(1, 2), h.q.encodedRoster()
	ledger := h.ledger
	counted := h.q.Overview().Sets[0].Done
	h.work(15, "a", "b", "d", "e") // the original job continues

	q, err := Restore(backup, roster, []*Table{table}, BackupOptions)
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Revive("new", [16]byte{2}, 8); err != nil {
		t.Fatal(err)
	}
	revived := &history{t: t, q: q, verifier: NewVerifier(), tokens: map[Token]bool{}}
	for _, r := range ledger {
		revived.add(r)
	}
	revived.commit()
	if len(q.encodedRoster()) != 0 || q.Trainers() != 0 || q.Saving() > 0 {
		t.Errorf("restored job: expected no trainer and no saver of the original job, found trainers %v and saver %v", q.encodedRoster(), q.Saving())
	}
	v := q.Overview()
	if v.Job != "new" || q.JobID() != [16]byte{2} || v.Sets[0].Done != counted || v.Sets[0].Pending != 0 || v.Sets[0].Retry != len(held) || v.Epoch != 2 {
		t.Errorf("restored: %+v; expected %d tasks counted and %d to be delivered again", v, counted, len(held))
	}
	s := q.Snapshot(1, 2)
	if s.Cluster != 8 || s.Restores != 1 || s.Commit <= backup.Commit || s.Saver != 0 || s.SaverUntil != 0 {
		t.Errorf("restored: %+v", s)
	}
	if q, err = Restore(s, nil, []*Table{table}, Options{Passes: 2}); err != nil { // the next master
		t.Fatal(err)
	}
	revived.q = q
	a := revived.do(&Join{ID: "a"})
	if a.Incarnation <= h.newest {
		t.Errorf("expected an incarnation above %[2]x, of the original job; found %[1]x", a.Incarnation, h.newest)
	}
	for token := range h.tokens {
		answer := revived.do(&Request{Trainer: a.Ordinal, Incarnation: a.Incarnation, Finished: []Result{{Token: token}}})
		if answer.Finishes[0] != Stale {
			t.Fatalf("finish of token %v of the original job: got %v", token, answer.Finishes[0])
		}
	}
	for _, r := range held {
		if answer := revived.do(&r); answer.Kind != AnswerRejoin {
			t.Errorf("trainer of the original job: got %+v", answer)
		}
	}
	revived.work(1000, "a", "b")
	if status, _ := q.Status(); status != Ended {
		t.Errorf("the job is %v", status)
	}
	for token := range revived.tokens {
		if h.tokens[token] {
			t.Errorf("token %v: dispatched by both jobs", token)
		}
	}
	if r := revived.verifier.Report(); len(r) != 2 || r[0].CountedOnce != 20 || r[1].CountedOnce != 20 || r[0].Redelivered != len(held) {
		t.Errorf("verify: %+v", r)
	}
}

func anyOf(held map[Token]Request) Token {
	for token := range maps.Keys(held) {
		return token
	}
	return Token{}
}

// A task near its limits keeps its failures and losses, for any limits of the job.
func TestReviveChargesNothing(t *testing.T) {
	opt := Options{MaxFailures: 9}
	table := tableOf(t, 2)
	q := New("old", [16]byte{1}, 7, opt)
	q.Apply(1, &Report{ReportID: "r", Table: table})
	a := q.Apply(1, &Join{ID: "a"})
	for i := range uint64(8) {
		answer := q.Apply(1, &Request{Trainer: a.Ordinal, Incarnation: a.Incarnation, Seq: i, Want: true})
		q.Apply(1, &Request{Trainer: a.Ordinal, Incarnation: a.Incarnation, Seq: i, Finished: []Result{{Token: answer.Token, Error: "torn"}}})
	}
	answer := q.Apply(1, &Request{Trainer: a.Ordinal, Incarnation: a.Incarnation, Seq: 9, Want: true})
	other := q.Apply(1, &Request{Trainer: a.Ordinal, Incarnation: a.Incarnation, Seq: 10, Want: true, Held: []Token{answer.Token}})
	q.Apply(1, &Request{Trainer: a.Ordinal, Incarnation: a.Incarnation, Seq: 11, Finished: []Result{{Token: other.Token}}}) // a loss would be charged
	q.Ready()
	backup, err := Restore(q.Snapshot(1, 2), q.encodedRoster(), []*Table{table}, BackupOptions)
	if err != nil {
		t.Fatal(err)
	}
	if err := backup.Revive("new", [16]byte{2}, 8); err != nil {
		t.Fatal(err)
	}
	if tasks := backup.PendingTasks(); len(tasks) != 1 || len(tasks[0].Holders) != 0 || tasks[0].Failures != 8 || tasks[0].Losses != 0 {
		t.Errorf("restored task: found %+v", tasks)
	}
}

func TestReviveBeyondMaxRestoresIsRefused(t *testing.T) {
	q := goldenQueue(t)
	q.restores = math.MaxUint8
	if err := q.Revive("new", [16]byte{2}, 8); !errors.Is(err, ErrTooOften) || q.job != "golden" || q.epoch != 1 {
		t.Errorf("found %v, and job %s in epoch %d", err, q.job, q.epoch)
	}
}

// A frame to a parameter server has 16 bits for the epoch. A queue in its last epoch refuses rollbacks and restores, and changes nothing.
func TestLastEpochIsNotExceeded(t *testing.T) {
	q := New("job", [16]byte{1}, 1, Options{Cuts: true, ExplicitCommit: true})
	q.epoch = MaxEpoch - 1
	if a := q.Apply(1, &Rollback{Generation: 1}); a.Err != nil || q.epoch != MaxEpoch {
		t.Fatalf("rollback before the last epoch: %+v, epoch %d", a, q.epoch)
	}
	q.Ready()
	place := q.Steps()
	if a := q.Apply(1, &Rollback{Generation: 2}); !errors.Is(a.Err, ErrTooOften) || q.epoch != MaxEpoch || q.Steps() != place || q.Ready().MustCommit {
		t.Errorf("rollback in the last epoch: expected %v and no change, found %+v, epoch %d, %+v", ErrTooOften, a, q.epoch, q.Steps())
	}
	if err := q.Revive("new", [16]byte{2}, 8); !errors.Is(err, ErrTooOften) || q.job != "job" || q.epoch != MaxEpoch {
		t.Errorf("restore in the last epoch: expected %v, found %v, job %s, epoch %d", ErrTooOften, err, q.job, q.epoch)
	}
}
