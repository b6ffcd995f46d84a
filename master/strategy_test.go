package master

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"trainmaster/master/committer"
	"trainmaster/master/strategy"
	"trainmaster/taskqueue"
)

// following returns a configuration with a strategy.
func following(t *testing.T, file string) (config Config) {
	t.Helper()
	parsed, err := strategy.Parse([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	config.Queue.Strategy = parsed.OfJob([]byte(file), false)
	return config
}

// F219: a decision that etcd refuses has no effect. It is made again, once.
func TestRefusedDecisionHasNoEffect(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		m, stop, _ := leads(t, store, following(t, `hyper-parameters: {dropout: {schedule: plateau, value: 0.5, figure: "loss:min", factor: 0.5, patience: 1}}`), nil)
		defer stop()
		register(t, m, 8)
		ended := func(number uint64, loss float64) error {
			return m.send(t.Context(), &taskqueue.StoreKeys{Ended: &taskqueue.EndedRound{Number: number, Figures: map[string]float64{"loss": loss}}})
		}
		connection := "a"
		dropout := func() float64 {
			reply, err := m.PlainAsk(t.Context(), &taskqueue.PlainAsk{Connection: connection, Want: true})
			if err != nil || reply.Assignment == nil {
				t.Fatalf("expected a task, found %+v, %v", reply, err)
			}
			connection += "a"
			return reply.Assignment.HyperParameters["dropout"]
		}
		if err := ended(1, 1); err != nil {
			t.Fatal(err)
		}
		store.set(time.Millisecond, errors.New("etcd is full"))
		if err := ended(2, 2); err == nil {
			t.Fatal("expected an error of the store")
		}
		store.set(time.Millisecond, nil)
		if v := dropout(); v != 0.5 {
			t.Errorf("after a refused decision: expected 0.5, found %v", v)
		}
		if err := ended(2, 2); err != nil {
			t.Fatal(err)
		}
		if v := dropout(); v != 0.25 {
			t.Errorf("after the decision: expected 0.25, found %v", v)
		}
		value, _, err := store.Value(t.Context(), taskqueue.StrategyKey)
		if err != nil || !strings.Contains(string(value), `"round":2,"parameters":{"dropout":{"value":0.25,"reductions":1,"best":1}}`) {
			t.Errorf("stored %s, %v", value, err)
		}
	})
}

// F224: a job keeps its strategy. A job without a strategy accepts one.
func TestJobKeepsItsStrategy(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const file = "stop:\n- when: job.passes > 10\n- when: job.step > 10\n"
		store := newMemory()
		_, stop, _ := leads(t, store, Config{}, nil)
		stop()
		_, stop, _ = leads(t, store, following(t, file), nil)
		stop()
		for words, config := range map[string]Config{
			"found none":                         {},
			"found another one (line 3 differs)": following(t, "stop:\n- when: job.passes > 10\n- when: job.step > 20\n"),
		} {
			err := committer.CheckStrategy(t.Context(), store, config.Queue.Strategy)
			if !errors.Is(err, ErrOtherJob) || !strings.Contains(err.Error(), words) {
				t.Errorf("expected %q, found %v", words, err)
			}
			config.Store = store
			m, err := New(config)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if err := m.Run(ctx); !errors.Is(err, ErrOtherJob) {
				t.Errorf("expected %v, found %v", ErrOtherJob, err)
			}
			cancel()
		}
		if err := committer.CheckStrategy(t.Context(), store, following(t, file).Queue.Strategy); err != nil {
			t.Error(err)
		}
	})
}

// F253: a decision of a population that etcd refuses has no effect. It is made again, once, and the next term has it.
func TestRefusedReplacementHasNoEffect(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		config := following(t, `population: {every: 1pass, figure: "loss:min", hyper-parameters: {rate: {min: 1, max: 2}}}`)
		config.Queue.Passes = 100
		m, stop, _ := leads(t, store, config, nil)
		register(t, m, 1)
		sessions := map[string]Session{}
		for _, id := range []string{"a", "b"} {
			s, err := m.JoinAs(t.Context(), Joining{ID: id, Control: ":9000", Peer: "10.0.0.1:5000"})
			if err != nil {
				t.Fatal(err)
			}
			sessions[id] = s
		}
		seq := uint64(0)
		take := func(id string, finished ...taskqueue.Result) *Assignment {
			seq++
			reply, err := m.Next(t.Context(), &taskqueue.Request{
				Trainer: sessions[id].Ordinal, Incarnation: sessions[id].Incarnation, Seq: seq, Ack: seq, Want: true, Finished: finished,
			})
			if err != nil || reply.Assignment == nil {
				t.Fatalf("expected a task, found %+v, %v", reply, err)
			}
			return reply.Assignment
		}
		ended := func(trainer string, loss float64) error {
			return m.send(t.Context(), &taskqueue.StoreKeys{Ended: &taskqueue.EndedRound{Number: 1, Trainer: trainer, Figures: map[string]float64{"loss": loss}}})
		}
		from := func(a *Assignment, want string) {
			t.Helper()
			if a.From.Address != want {
				t.Errorf("expected the model of %q, found %+v", want, a.From)
			}
		}
		task := take("b", taskqueue.Result{Token: take("b").Task.Token}) // the first generation begins
		if err := ended("a", 2); err != nil {
			t.Fatal(err)
		}
		store.set(time.Millisecond, errors.New("etcd is full"))
		if err := ended("b", 1); err == nil {
			t.Fatal("expected an error of the store")
		}
		store.set(time.Millisecond, nil)
		next := take("a", taskqueue.Result{Token: task.Task.Token})
		from(next, "")
		if err := ended("b", 1); err != nil {
			t.Fatal(err)
		}
		stop()
		m, stop, _ = leads(t, store, config, nil)
		defer stop()
		next = take("a", taskqueue.Result{Token: next.Task.Token})
		from(next, "10.0.0.1:9000")
		next = take("a", taskqueue.Result{Token: next.Task.Token})
		from(next, "")
	})
}
