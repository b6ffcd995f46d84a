package etcdstore_test

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/taskqueue"
)

const latestKey = "/checkpoints/latest"

// A write of an operator succeeds only if the leader and the named set are unchanged since the operator read them.
func TestMovePointerComparesLeaderAndSet(t *testing.T) {
	put := func(t *testing.T, s *etcdstore.Store, value string) {
		t.Helper()
		if _, err := s.Client().Put(t.Context(), s.Prefix()+latestKey, value); err != nil {
			t.Fatal(err)
		}
	}
	lead := func(t *testing.T, s *etcdstore.Store) *etcdstore.Lock {
		t.Helper()
		lock, err := s.Campaign(t.Context(), etcdstore.CampaignConfig{Address: "a:1", TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		return lock
	}
	for name, meanwhile := range map[string]func(t *testing.T, s *etcdstore.Store){
		"nothing":              func(*testing.T, *etcdstore.Store) {},
		"another set is named": func(t *testing.T, s *etcdstore.Store) { put(t, s, "set 3") },
		"a master leads":       func(t *testing.T, s *etcdstore.Store) { lead(t, s) },
	} {
		t.Run(name, func(t *testing.T) {
			s := etcdtest.Open(t, etcdtest.Endpoint(t), etcdtest.NewJob(t))
			put(t, s, "set 2")
			from, err := s.ReadPointer(t.Context())
			if err != nil || string(from.Set) != "set 2" {
				t.Fatalf("%q, %v", from.Set, err)
			}
			meanwhile(t, s)
			err = s.MovePointer(t.Context(), from, []byte("set 1"))
			if moved := errors.Is(err, etcdstore.ErrPointerMoved); moved != (name != "nothing") || !moved && err != nil {
				t.Errorf("expected a refusal, found %v", err)
			}
		})
	}
	t.Run("the leader leaves", func(t *testing.T) {
		s := etcdtest.Open(t, etcdtest.Endpoint(t), etcdtest.NewJob(t))
		lock := lead(t, s)
		from, err := s.ReadPointer(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.MovePointer(t.Context(), from, []byte("set 1")); err != nil {
			t.Errorf("same leader: got %v", err)
		}
		if from, err = s.ReadPointer(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := lock.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.MovePointer(t.Context(), from, []byte("set 2")); !errors.Is(err, etcdstore.ErrPointerMoved) {
			t.Errorf("after the leader resigned: got %v", err)
		}
	})
}

// An interrupted import has deleted the ledger of the replaced job, and has stored where the ledger of the new job
// begins.
func TestInterruptedAdoptionKeepsLedgerBegin(t *testing.T) {
	s := etcdtest.Open(t, etcdtest.Endpoint(t), etcdtest.NewJob(t))
	for _, key := range []string{"/ledger/0000000000000001", "/ledger/begin", "/ledger/begin2", "/ledger/sealed"} {
		if _, err := s.Client().Put(t.Context(), s.Prefix()+key, "old"); err != nil {
			t.Fatal(err)
		}
	}
	from, err := s.ReadPointer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	crash := errors.New("crash")
	broken := func(yield func(taskqueue.Write, error) bool) { yield(taskqueue.Write{}, crash) }
	job := etcdstore.Import{
		ID: "x", Name: "x", State: []byte("state"), Keys: broken, Replaces: &from, Begin: []taskqueue.Write{{Key: "/ledger/begin", Value: []byte("new")}},
	}
	if err := s.ImportJob(t.Context(), job); !errors.Is(err, crash) {
		t.Fatalf("found %v, expected %v", err, crash)
	}
	left, _, err := s.Prefixed(t.Context(), "/ledger/")
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != 1 || string(left["/ledger/begin"]) != "new" {
		t.Errorf("found %q, expected /ledger/begin alone, with %q", left, "new")
	}
	job.Keys = func(func(taskqueue.Write, error) bool) {}
	if err := s.ImportJob(t.Context(), job); err != nil {
		t.Errorf("second import: got %v", err)
	}
}

// F258: an import that replaces a job leaves no later decisions of an evaluation and a strategy, also if it has none. The strategy file and
// the records of earlier rounds stay.
func TestImportReplacesLaterDecisions(t *testing.T) {
	s := etcdtest.Open(t, etcdtest.Endpoint(t), etcdtest.NewJob(t))
	for _, key := range []string{
		taskqueue.StateKey, taskqueue.EvaluationKey, taskqueue.RoundKey, taskqueue.ModelKey, taskqueue.RoundRecordPrefix + "00000009", taskqueue.RoundRecordPrefix + "00000010",
		taskqueue.RoundRecordPrefix + "00000011", taskqueue.StrategyKey, taskqueue.StrategyFileKey, taskqueue.StatisticsKey,
	} {
		if _, err := s.Client().Put(t.Context(), s.Prefix()+key, "later"); err != nil {
			t.Fatal(err)
		}
	}
	from, err := s.ReadPointer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	job := etcdstore.Import{
		ID: "x", Name: "x", State: []byte("state"), Keys: func(func(taskqueue.Write, error) bool) {}, Replaces: &from, Round: taskqueue.RoundRecordPrefix + "00000009",
	}
	if err := s.ImportJob(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	left, _, err := s.Prefixed(t.Context(), "/")
	if err != nil {
		t.Fatal(err)
	}
	found := slices.Sorted(maps.Keys(left))
	if want := []string{taskqueue.RoundRecordPrefix + "00000009", "/job", taskqueue.StrategyFileKey, taskqueue.StateKey}; !slices.Equal(found, want) {
		t.Errorf("expected the keys %q, found %q", want, found)
	}
	job.Replaces = nil
	for _, key := range []string{taskqueue.RoundKey, taskqueue.StrategyKey} {
		other := etcdtest.Open(t, etcdtest.Endpoint(t), etcdtest.NewJob(t))
		if _, err := other.Client().Put(t.Context(), other.Prefix()+key, "of another job"); err != nil {
			t.Fatal(err)
		}
		if err := other.ImportJob(t.Context(), job); !errors.Is(err, etcdstore.ErrOccupied) {
			t.Errorf("import over %s: found %v, expected %v", key, err, etcdstore.ErrOccupied)
		}
	}
}
