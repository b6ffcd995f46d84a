package master

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"trainmaster/master/committer"
	"trainmaster/master/component"
	"trainmaster/master/trainercontrol"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

// stopCalls is the TrainerControl of all trainers.
type stopCalls struct {
	hangs  bool
	hungAt string // prefix of the addresses whose calls of Progress do not return

	mu         sync.Mutex
	stopped    []string // address and task
	steps      int64    // number of steps of all trainers
	moves      int64    // steps between two calls of Progress
	of         taskqueue.TaskID
	ofAddress  map[string]taskqueue.TaskID // instead of of
	inProgress int
	most       int
	given      int      // calls that ended with their context
	evaluated  []string // address and task
	refused    error    // of evaluations
}

func (c *stopCalls) Stop(ctx context.Context, address string, task taskqueue.Token) error {
	c.mu.Lock()
	c.stopped = append(c.stopped, address+" "+task.String())
	c.inProgress++
	c.most = max(c.most, c.inProgress)
	c.mu.Unlock()
	if c.hangs {
		<-ctx.Done()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inProgress--
	if c.hangs {
		c.given++
	}
	return ctx.Err()
}

func (c *stopCalls) Progress(ctx context.Context, address string) (taskqueue.TaskID, int64, error) {
	if c.hungAt != "" && strings.HasPrefix(address, c.hungAt) {
		<-ctx.Done()
		return 0, 0, ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.steps += c.moves
	if of, ok := c.ofAddress[address]; ok {
		return of, c.steps, nil
	}
	return c.of, c.steps, nil
}

func (c *stopCalls) Evaluate(_ context.Context, address string, task trainercontrol.Task) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.evaluated = append(c.evaluated, address+" "+task.Token.String())
	return c.refused
}

func (c *stopCalls) calls() (stopped []string, most, given int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.stopped), c.most, c.given
}

// controlling returns the configuration of a master that calls trainers.
func controlling(calls *stopCalls) Config {
	return Config{
		Queue:      taskqueue.Options{Passes: 1, FirstTimeout: time.Second, TimeoutMin: time.Second, SessionTTL: time.Hour},
		Components: []component.Component{trainercontrol.New(trainercontrol.Config{Trainers: calls, Log: quiet()})},
	}
}

// joinsAt joins trainers on ten hosts with an address for commands, and gives each a task that times out.
func joinsAt(t *testing.T, m *Master, n int) {
	t.Helper()
	for i := range n {
		joinsFrom(t, m, fmt.Sprint("slow", i), fmt.Sprintf("10.0.0.%d:50000", 7+i%10), 9000+i)
	}
}

// joinsFrom joins a trainer on a host with a port for commands, and returns its task.
func joinsFrom(t *testing.T, m *Master, id, peer string, port int) taskqueue.Token {
	t.Helper()
	s, err := m.JoinAs(t.Context(), Joining{ID: id, Control: fmt.Sprint(":", port), Peer: peer})
	if err != nil {
		t.Fatal(err)
	}
	r, err := m.Next(t.Context(), &taskqueue.Request{Trainer: s.Ordinal, Incarnation: s.Incarnation, Seq: 1, Ack: 1, Want: true})
	if err != nil || r.Assignment == nil {
		t.Fatalf("task of trainer %s: %+v, %v", id, r, err)
	}
	return r.Assignment.Task.Token
}

func TestStopReachesTrainerAtTheHostOfItsConnection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		calls := &stopCalls{}
		m, _, _ := leads(t, newMemory(), controlling(calls), nil)
		register(t, m, 1)
		joinsAt(t, m, 1)
		if !joins(t, m, "b").next() {
			t.Fatal("b: expected the task after its timeout")
		}
		time.Sleep(time.Second) // virtual time
		if stopped, _, _ := calls.calls(); !slices.Equal(stopped, []string{"10.0.0.7:9000 1/0/1/0.1"}) {
			t.Errorf("stops: found %q", stopped)
		}
		for _, control := range []string{"10.0.0.8:9000", "169.254.169.254:80", "localhost:2379"} {
			_, err := m.JoinAs(t.Context(), Joining{ID: "foreign", Control: control, Peer: "10.0.0.7:50000"})
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "trainer control address") {
				t.Errorf("join with the address %s: %v", control, err)
			}
		}
	})
}

// Trainers that do not answer delay no commit, and the stops of other trainers for a limited time.
func TestTrainersThatDoNotAnswerDelayNoCommit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const trainers = 40
		calls := &stopCalls{hangs: true}
		config := controlling(calls)
		config.Queue.FirstTimeout, config.Queue.TimeoutMin = 3*time.Second, 3*time.Second // at 10 timeouts, the stops are repeated
		m, _, _ := leads(t, newMemory(), config, nil)
		register(t, m, trainers)
		joinsAt(t, m, trainers)
		b, began := joins(t, m, "b"), time.Now()
		for range trainers {
			if !b.next() {
				t.Fatal("b: expected a task")
			}
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("tasks were dispatched again in %v", took)
		}
		time.Sleep(20 * time.Second) // virtual time: three rounds of 5 s
		if stopped, most, given := calls.calls(); len(stopped) != trainers || most > 16 || given != trainers {
			t.Errorf("found %d calls, %d at the same time, %d given up; expected %d, at most 16, all", len(stopped), most, given, trainers)
		}
	})
}

// Progress that a trainer reports to the leader extends the deadline of its task, within the hard deadline.
func TestProgressAtTheAddressOfATrainerExtendsItsDeadline(t *testing.T) {
	first := taskqueue.Token{Epoch: 1, Pass: 1, Attempt: 1}.ID()
	for name, test := range map[string]struct {
		moves  int64
		of     taskqueue.TaskID
		lasted time.Duration
	}{
		"no progress":           {0, first, time.Second},
		"of another task":       {1, first + 1, time.Second},
		"until the hard moment": {1, first, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m, _, _ := leads(t, newMemory(), controlling(&stopCalls{moves: test.moves, of: test.of}), nil)
				register(t, m, 1)
				joinsAt(t, m, 1)
				b, began := joins(t, m, "b"), time.Now()
				if !b.next() {
					b.next() // the first request waits for 10 s
				}
				if took := time.Since(began); took < test.lasted || took > test.lasted+time.Second {
					t.Errorf("the task was dispatched again after %v, expected %v", took, test.lasted)
				}
			})
		})
	}
}

// Ports of one host that do not answer leave calls to the trainers of other hosts. The deadline of a moving task is extended.
func TestPortsThatDoNotAnswerDelayNoProgressOfOthers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const timeout, hung, groups = time.Minute, 40, 8
		calls := &stopCalls{hungAt: "10.0.0.7:", moves: 1, ofAddress: map[string]taskqueue.TaskID{}}
		config := controlling(calls)
		config.Queue.FirstTimeout, config.Queue.TimeoutMin = timeout, timeout
		m, _, _ := leads(t, newMemory(), config, nil)
		register(t, m, groups*(hung+1))
		for g := range groups {
			for i := range hung {
				joinsFrom(t, m, fmt.Sprint("hung", g, "-", i), "10.0.0.7:50000", 9000+i)
			}
			moves := joinsFrom(t, m, fmt.Sprint("moves", g), "10.0.0.8:50000", 9000+g).ID()
			calls.mu.Lock()
			calls.ofAddress[fmt.Sprint("10.0.0.8:", 9000+g)] = moves
			calls.mu.Unlock()
		}
		time.Sleep(timeout + timeout/4) // virtual time
		v, err := m.Overview(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, trainer := range v.Trainers {
			if strings.HasPrefix(trainer.ID, "moves") && len(trainer.Tasks) == 0 {
				t.Errorf("%s: expected its task after %v, found none", trainer.ID, timeout)
			}
		}
	})
}

// A stop is published when the dispatch of its task to another trainer is committed. Otherwise a trainer would give up a task that no
// other trainer has.
func TestStopIsPublishedAfterItsCommit(t *testing.T) {
	for _, refused := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			store := newMemory()
			d := drives(t, store, Config{Queue: taskqueue.Options{FirstTimeout: time.Second, TimeoutMin: time.Second}})
			box := d.Effects(taskqueue.OnStopDue)
			first, second := d.put(&taskqueue.Join{ID: "a", Control: "10.0.0.7:9000"}), d.put(&taskqueue.Join{ID: "b"})
			d.put(&taskqueue.Report{Digest: [32]byte{1}, Table: tableOfParts(t, 1)})
			d.round(false)
			ask := func(joined *committer.Pending) {
				s, _, _, _ := joined.Answer()
				d.put(&taskqueue.Request{Trainer: s.Ordinal, Incarnation: s.Incarnation, Seq: 1, Ack: 1, Want: true})
				d.round(false)
			}
			ask(first)
			time.Sleep(2 * time.Second) // virtual time
			d.round(true)
			if refused {
				store.set(0, errors.New("full"))
			}
			ask(second)
			if got := box.Take(); len(got) > 0 == refused {
				t.Errorf("refused %v: found %+v", refused, got)
			}
		})
	}
}

// evaluates returns a leader with a trainer that has an address for commands, and its round over two tasks.
func evaluates(t *testing.T, store *memory, calls *stopCalls) (m *Master, s Session) {
	t.Helper()
	config := controlling(calls)
	config.Queue.FirstTimeout = time.Hour
	m, _, _ = leads(t, store, config, nil)
	register(t, m, 1)
	table := taskqueue.NewTable(1)
	if err := table.Add(taskqueue.File{Path: "/data/held-out", Size: 2 * recordio.HeaderSize}, []recordio.Index{{Records: 1}, {Offset: recordio.HeaderSize, Records: 1}}); err != nil {
		t.Fatal(err)
	}
	if err := m.send(t.Context(), &taskqueue.Report{SetSpec: taskqueue.SetSpec{Kind: taskqueue.Evaluation}, Digest: [32]byte{9}, Table: table}); err != nil {
		t.Fatal(err)
	}
	s, err := m.JoinAs(t.Context(), Joining{ID: "a", Control: ":9000", Peer: "10.0.0.7:50000"})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.send(t.Context(), &taskqueue.BeginRound{Set: 1, Number: 1, Trainer: "a"}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second) // virtual time
	return m, s
}

func (c *stopCalls) wantEvaluated(t *testing.T, want ...string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Equal(c.evaluated, want) {
		t.Errorf("evaluations: found %q, expected %q", c.evaluated, want)
	}
}

const (
	firstEvaluation  = "10.0.0.7:9000 1/1/1/0.1"
	secondEvaluation = "10.0.0.7:9000 1/1/1/1.1"
)

func finishesEvaluation(t *testing.T, m *Master, s Session, position int) {
	t.Helper()
	result := taskqueue.Result{Token: taskqueue.Token{Epoch: 1, Kind: taskqueue.Evaluation, Dataset: 1, Pass: 1, Position: position, Attempt: 1}}
	r, err := m.Next(t.Context(), &taskqueue.Request{Trainer: s.Ordinal, Incarnation: s.Incarnation, Seq: 1, Finished: []taskqueue.Result{result}})
	if err != nil || r.Finishes[0] != taskqueue.Counted {
		t.Fatalf("%+v, %v", r, err)
	}
	time.Sleep(time.Second) // virtual time
}

func TestLeaderBringsEachTaskOfARoundToItsTrainer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		calls := &stopCalls{}
		m, s := evaluates(t, newMemory(), calls)
		calls.wantEvaluated(t, firstEvaluation)
		finishesEvaluation(t, m, s, 0)
		calls.wantEvaluated(t, firstEvaluation, secondEvaluation)
		finishesEvaluation(t, m, s, 1)
		calls.wantEvaluated(t, firstEvaluation, secondEvaluation)
	})
}

// A call that fails is repeated with the same task. A refusal ends the round with the reason.
func TestTrainerThatDoesNotTakeItsRound(t *testing.T) {
	for name, test := range map[string]struct {
		err     error
		calls   int
		outcome string
	}{
		"not reached": {errors.New("no route"), 2, ""},
		"refused":     {fmt.Errorf("%w: no model", trainercontrol.ErrRefused), 1, "trainer a: task failed: " + trainercontrol.ErrRefused.Error() + ": no model"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				calls := &stopCalls{refused: test.err}
				m, _ := evaluates(t, newMemory(), calls)
				time.Sleep(500 * time.Millisecond) // virtual time
				calls.wantEvaluated(t, slices.Repeat([]string{firstEvaluation}, test.calls)...)
				var round taskqueue.Round
				if err := m.inspect(t.Context(), func(q *taskqueue.Queue) { round, _ = q.Round() }); err != nil || round.Outcome != test.outcome {
					t.Errorf("round %+v, %v", round, err)
				}
			})
		})
	}
}

// A task of a round waits while the job is paused.
func TestPausedJobBringsNoTaskOfARound(t *testing.T) {
	bubble(t, func(t *testing.T) {
		calls := &stopCalls{}
		m, s := evaluates(t, newMemory(), calls)
		if err := m.Pause(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
		finishesEvaluation(t, m, s, 0)
		time.Sleep(time.Minute) // virtual time
		calls.wantEvaluated(t, firstEvaluation)
		if err := m.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second) // virtual time
		calls.wantEvaluated(t, firstEvaluation, secondEvaluation)
	})
}
