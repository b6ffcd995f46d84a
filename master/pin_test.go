package master

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"trainmaster/master/evaluation"
	"trainmaster/master/evaluation/metric"
	"trainmaster/master/pscontrol"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

// The sets of evaluation rounds are spared, and a set that is pinned is not removed before it is stored as the set of a round.
func TestSetsOfRoundsAreSpared(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		s := &cutting{store: store}
		m, stop, _ := leads(t, store, Config{}, s, pscontrol.Config{CheckpointEvery: pscontrol.Cadence{Time: time.Minute}, CheckpointKeep: 1})
		defer stop()
		time.Sleep(time.Second + 100*time.Millisecond)
		s.taken()
		state, _, err := evaluation.Decide(1, evaluation.Config{}, evaluation.State{}, evaluation.Input{Model: pscontrol.SetModel(2), Command: true})
		if err != nil {
			t.Fatal(err)
		}
		failed := errors.New("not stored")
		err = m.config.Servers.Pin(t.Context(), func(model string, version uint64) error {
			if model != "set-2" || version != 0 {
				t.Errorf("pinned %q at version %d, expected the set that was taken", model, version)
			}
			time.Sleep(2 * time.Minute) // checkpoints are due
			if found := s.taken(); found != "begin 2, write 2, set 2 latest, keep 1, 2" {
				t.Errorf("while the set is pinned: %s", found)
			}
			if err := m.send(t.Context(), &taskqueue.StoreKeys{Writes: []taskqueue.Write{{Key: evaluation.Key, Value: state.Encode()}}}); err != nil {
				t.Error(err)
			}
			return failed
		})
		if !errors.Is(err, failed) {
			t.Errorf("found %v, expected the error of the caller", err)
		}
		time.Sleep(time.Second)
		if found := s.taken(); !strings.HasPrefix(found, "begin 3, write 3, set 3 latest, keep 1 and [2], 3") {
			t.Errorf("after that: %s", found)
		}
		s.fail("begin")
		if err := m.config.Servers.Pin(t.Context(), func(model string, _ uint64) error {
			if n, ok := pscontrol.SetOfModel(model); !ok || n < 3 {
				t.Errorf("pinned %q, expected the newest set", model)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	})
}

func TestNamesOfSets(t *testing.T) {
	for name, want := range map[string]uint64{"set-1": 1, "set-12": 12, "set-01": 0, "set-": 0, "newest": 0, "/models/1": 0, "set-18446744073709551616": 0} {
		if n, ok := pscontrol.SetOfModel(name); ok != (want > 0) || ok && n != want {
			t.Errorf("%q: found %d, %v, expected %d", name, n, ok, want)
		}
	}
}

func TestRefusedCommitKeepsRound(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		m, stop, _ := leads(t, store, Config{}, nil)
		defer stop()
		register(t, m, 4)
		table := taskqueue.NewTable(2)
		chunks := []recordio.Index{{Size: 100, Records: 10, Layout: 1}, {Offset: recordio.HeaderSize + 100, Size: 100, Records: 10, Layout: 1}}
		if err := table.Add(taskqueue.File{Path: "/data/b", Size: 2 * (recordio.HeaderSize + 100)}, chunks); err != nil {
			t.Fatal(err)
		}
		lead, err := m.leading()
		if err != nil {
			t.Fatal(err)
		}
		err = errors.Join(m.register(t.Context(), lead, taskqueue.SetSpec{Name: "evaluation", Kind: taskqueue.Evaluation}, table, [32]byte{9}),
			m.send(t.Context(), &taskqueue.BeginRound{Set: 1, Number: 3, Model: "models/1"}))
		if err != nil {
			t.Fatal(err)
		}
		var set metric.Set
		if err := set.AddSum("clicks", 2); err != nil {
			t.Fatal(err)
		}
		ask := &taskqueue.PlainAsk{Connection: "a", Want: true, Accepts: taskqueue.KindsOf(taskqueue.Evaluation)}
		finish := func() error {
			reply, err := m.PlainAsk(t.Context(), ask)
			if err != nil {
				return err
			}
			ask.Trainer, ask.Incarnation = reply.Ordinal, reply.Incarnation
			if reply.Assignment != nil {
				ask.Finished, ask.Task, ask.Metrics = true, reply.Assignment.Task.Token.ID(), set.Encode()
			}
			return nil
		}
		for range 2 { // takes a task, and finishes it
			if err := finish(); err != nil {
				t.Fatal(err)
			}
		}
		store.set(time.Millisecond, errors.New("etcd is full"))
		if err := finish(); err == nil {
			t.Fatal("expected an error of the store")
		}
		store.set(time.Millisecond, nil)
		var round taskqueue.Round
		if err := m.inspect(t.Context(), func(q *taskqueue.Queue) { round, _ = q.Round() }); err != nil || round.Number != 3 || round.Results != 1 || !bytes.Equal(round.Metrics, set.Encode()) {
			t.Errorf("found %+v, %v, expected round 3 with one result", round, err)
		}
	})
}
