package master

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"trainmaster/taskqueue"
)

// cuts is a job whose cuts include the trainers, on the clock of a bubble.
type cuts struct {
	*Master
	t       *testing.T
	ctx     context.Context
	store   *memory
	servers *retiringTogether
}

// leadsWithCuts begins without cuts: see begin.
func leadsWithCuts(t *testing.T) *cuts {
	t.Helper()
	store := newMemory()
	shards := &cutting{store: store, abouts: map[uint64]About{}, versions: map[uint64]uint64{}}
	config := Config{CheckpointEvery: Cadence{Time: time.Minute}, CheckpointKeep: 1, Queue: taskqueue.Options{Cuts: true, ExplicitCommit: true, SessionTTL: 20 * time.Second}}
	servers := &retiringTogether{cutTogether: cutTogether{shards}, absent: true}
	m, stop, ended := leads(t, store, config, servers)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() {
		cancel()
		stop()
		<-ended
	})
	register(t, m, 4)
	return &cuts{Master: m, t: t, ctx: ctx, store: store, servers: servers}
}

// member joins a trainer whose heartbeats continue.
func (c *cuts) member(id string) *worker {
	c.t.Helper()
	w := joins(c.t, c.Master, id)
	if _, _, err := c.LastStep(c.ctx, &taskqueue.LastStep{Trainer: w.Ordinal, Incarnation: w.Incarnation, Epoch: 1}); err != nil {
		c.t.Fatal(err)
	}
	go func() { // also after its session has ended
		for c.ctx.Err() == nil {
			_, _ = c.Heartbeat(c.ctx, &taskqueue.Heartbeat{Trainer: w.Ordinal, Incarnation: w.Incarnation})
			pause(c.ctx, 3*time.Second)
		}
	}()
	return w
}

// flushes has a trainer stand still for each cut, some time after it hears of it.
func (c *cuts) flushes(w *worker, after time.Duration) {
	go func() {
		for c.ctx.Err() == nil {
			if p, done, err := c.CutWatch(c.ctx, &taskqueue.CutWatch{Trainer: w.Ordinal, Incarnation: w.Incarnation}); err == nil && done {
				pause(c.ctx, after)
				_, _, _ = c.Flushed(c.ctx, &taskqueue.StepFlushed{Trainer: w.Ordinal, Incarnation: w.Incarnation, Generation: p.Generation, Step: p.Round})
			}
			pause(c.ctx, 10*time.Millisecond)
		}
	}()
}

// begin has cuts be taken from now on.
func (c *cuts) begin() {
	c.servers.mu.Lock()
	defer c.servers.mu.Unlock()
	c.servers.absent = false
}

func (c *cuts) sessions() (n int) {
	c.t.Helper()
	if err := c.current.Load().Read(c.ctx, func(q *taskqueue.Queue) { n = q.Trainers() }); err != nil {
		c.t.Fatal(err)
	}
	return n
}

// More trainers than one transaction of etcd can delete hang without a task: their sessions end in several ones, and the same cut
// goes on.
func TestCutFencesMoreTrainersThanATransactionTakes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := leadsWithCuts(t)
		for i := range 150 {
			c.member(fmt.Sprint("hangs", i))
		}
		c.flushes(c.member("works"), 0)
		c.begin()
		time.Sleep(3 * beginTimeout)
		if s := c.Master.servers.current.Load().checkpoints.status(); s.Set == 0 || s.Failure != "" {
			t.Errorf("no cut within %v: %+v", 3*beginTimeout, s)
		}
		if n := c.sessions(); n != 1 {
			t.Errorf("%d sessions, expected 1", n)
		}
	})
}

// A trainer without a task that stands still after 5 s keeps its session.
func TestCutKeepsTrainerThatStandsStillLate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := leadsWithCuts(t)
		c.flushes(c.member("late"), 5*time.Second)
		c.begin()
		time.Sleep(2 * beginTimeout)
		if s := c.Master.servers.current.Load().checkpoints.status(); s.Set == 0 || s.Failure != "" {
			t.Errorf("no cut within %v: %+v", 2*beginTimeout, s)
		}
		if n := c.sessions(); n != 1 {
			t.Errorf("%d sessions, expected 1", n)
		}
	})
}

// Parameter servers that answer slowly delay the beginning of a cut: the time of the trainers begins when they can hear of the cut.
func TestCutBehindSlowServersKeepsTrainers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := leadsWithCuts(t)
		c.servers.statesTake = beginTimeout * 9 / 10
		c.flushes(c.member("late"), beginTimeout/2)
		c.begin()
		time.Sleep(6 * beginTimeout)
		if n := c.sessions(); n != 1 {
			t.Errorf("%d sessions, expected 1", n)
		}
	})
}

// Etcd refuses the report of a trainer that has stopped for the cut, and takes writes again before the trainer repeats its report: the
// trainer keeps its session.
func TestCutKeepsTrainerWhoseReportEtcdRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := leadsWithCuts(t)
		late := c.member("late")
		refused := false
		go func() {
			for c.ctx.Err() == nil {
				if p, done, err := c.CutWatch(c.ctx, &taskqueue.CutWatch{Trainer: late.Ordinal, Incarnation: late.Incarnation}); err == nil && done {
					if !refused {
						pause(c.ctx, beginTimeout/2)
						c.store.set(time.Millisecond, taskqueue.ErrStoreFull)
					}
					_, _, err := c.Flushed(c.ctx, &taskqueue.StepFlushed{Trainer: late.Ordinal, Incarnation: late.Incarnation, Generation: p.Generation, Step: p.Round})
					if !refused {
						if refused = errors.Is(err, ErrNotStored); !refused {
							t.Errorf("a full store answered the report with %v", err)
						}
						c.store.set(time.Millisecond, nil)
						pause(c.ctx, beginTimeout)
					}
				}
				pause(c.ctx, 10*time.Millisecond)
			}
		}()
		c.begin()
		time.Sleep(4 * beginTimeout)
		if n := c.sessions(); n != 1 {
			t.Errorf("%d sessions, expected 1", n)
		}
		if s := c.Master.servers.current.Load().checkpoints.status(); s.Set == 0 || s.Failure != "" {
			t.Errorf("no cut within %v: %+v", 4*beginTimeout, s)
		}
	})
}

// The sessions of trainers end at a cut, and a parameter server does not hear of it in time: no later cut is taken before all
// servers have.
func TestNoCutBeforeServersHearWhoIsFenced(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := leadsWithCuts(t)
		hangs := c.member("hangs")
		c.flushes(c.member("works"), 0)
		c.servers.mu.Lock()
		c.servers.unreachable = errors.New("a server does not answer")
		c.servers.mu.Unlock()
		c.begin()
		time.Sleep(6 * beginTimeout)
		if n := c.sessions(); n != 1 {
			t.Errorf("%d sessions, expected 1", n)
		}
		if s := c.Master.servers.current.Load().checkpoints.status(); s.Set != 0 {
			t.Errorf("a cut was taken before all servers heard: %+v", s)
		}
		c.servers.mu.Lock()
		c.servers.unreachable = nil
		c.servers.mu.Unlock()
		time.Sleep(2 * checkpointPause)
		if s := c.Master.servers.current.Load().checkpoints.status(); s.Set == 0 || s.Failure != "" {
			t.Errorf("no cut after the servers were told: %+v", s)
		}
		if !c.servers.overAtBegin(hangs.Incarnation) {
			t.Error("the servers were not told who is over before the cut was taken")
		}
	})
}
