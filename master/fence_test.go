package master

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"trainmaster/master/pscontrol"
	"trainmaster/taskqueue"
)

// cuts is a job with cuts in a synctest bubble.
type cuts struct {
	*Master
	t       *testing.T
	ctx     context.Context
	store   *memory
	servers *retiringTogether
}

// leadsWithCuts starts a leader. Cuts begin with a call of begin.
func leadsWithCuts(t *testing.T) *cuts {
	t.Helper()
	store := newMemory()
	shards := &cutting{store: store, abouts: map[uint64]pscontrol.About{}, versions: map[uint64]uint64{}}
	config := Config{Queue: taskqueue.Options{Cuts: true, ExplicitCommit: true, SessionTTL: 20 * time.Second}}
	servers := &retiringTogether{cutTogether: cutTogether{shards}, absent: true}
	m, stop, ended := leads(t, store, config, servers, pscontrol.Config{CheckpointEvery: pscontrol.Cadence{Time: time.Minute}, CheckpointKeep: 1})
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
	w := memberOf(c.t, c.Master, id)
	go func() { // continues after the end of the session
		for c.ctx.Err() == nil {
			_, _ = c.Heartbeat(c.ctx, &taskqueue.Heartbeat{Trainer: w.Ordinal, Incarnation: w.Incarnation})
			pause(c.ctx, 3*time.Second)
		}
	}()
	return w
}

// begin allows cuts.
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

// wantCutAndOneSession waits d and checks that a cut succeeded and that one session is left.
func (c *cuts) wantCutAndOneSession(d time.Duration) {
	c.t.Helper()
	time.Sleep(d) // virtual time
	if s := c.Master.config.Servers.Checkpoint(); s.Set == 0 || s.Failure != "" {
		c.t.Errorf("expected a cut within %v, found %+v", d, s)
	}
	if n := c.sessions(); n != 1 {
		c.t.Errorf("%d sessions, expected 1", n)
	}
}

// More idle trainers hang than one transaction of etcd can delete. Their sessions end in several transactions, and
// the cut continues.
func TestCutFencesMoreTrainersThanATransactionTakes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := leadsWithCuts(t)
		for i := range 150 {
			c.member(fmt.Sprint("hangs", i))
		}
		c.member("works").flushes(c.ctx, 0)
		c.begin()
		c.wantCutAndOneSession(3 * beginTimeout)
	})
}

// A trainer without a task that flushes a cut after 5 s keeps its session.
func TestCutKeepsTrainerThatQuiescesLate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := leadsWithCuts(t)
		c.member("late").flushes(c.ctx, 5*time.Second)
		c.begin()
		c.wantCutAndOneSession(2 * beginTimeout)
	})
}

// Parameter servers that answer slowly delay the beginning of a cut. The timeout of trainers begins when they can
// receive the cut.
func TestCutBehindSlowServersKeepsTrainers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := leadsWithCuts(t)
		c.servers.mu.Lock()
		c.servers.statesTake = beginTimeout * 9 / 10
		c.servers.mu.Unlock()
		c.member("late").flushes(c.ctx, beginTimeout/2)
		c.begin()
		time.Sleep(6 * beginTimeout)
		if n := c.sessions(); n != 1 {
			t.Errorf("%d sessions, expected 1", n)
		}
	})
}

// etcd refuses the report of a trainer that has stopped for the cut, and accepts writes again before the trainer
// repeats the report. The trainer keeps its session.
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
							t.Errorf("report to a full store: got %v", err)
						}
						c.store.set(time.Millisecond, nil)
						pause(c.ctx, beginTimeout)
					}
				}
				pause(c.ctx, 10*time.Millisecond)
			}
		}()
		c.begin()
		c.wantCutAndOneSession(4 * beginTimeout)
	})
}

// A cut ends sessions of trainers, and a parameter server does not receive it in time. The leader takes no later cut
// before all servers have received it.
func TestCutWaitsForRetirementOfFencedTrainers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := leadsWithCuts(t)
		hangs := c.member("hangs")
		c.member("works").flushes(c.ctx, 0)
		c.servers.mu.Lock()
		c.servers.unreachable = errors.New("a server does not answer")
		c.servers.mu.Unlock()
		c.begin()
		time.Sleep(6 * beginTimeout)
		if n := c.sessions(); n != 1 {
			t.Errorf("%d sessions, expected 1", n)
		}
		if s := c.Master.config.Servers.Checkpoint(); s.Set != 0 {
			t.Errorf("expected no cut before all servers received the ended sessions, found %+v", s)
		}
		c.servers.mu.Lock()
		c.servers.unreachable = nil
		c.servers.mu.Unlock()
		time.Sleep(2 * checkpointPause)
		if s := c.Master.config.Servers.Checkpoint(); s.Set == 0 || s.Failure != "" {
			t.Errorf("expected a cut after the servers received the ended sessions, found %+v", s)
		}
		if !c.servers.overAtBegin(hangs.Incarnation) {
			t.Error("expected the ended sessions at the servers before the cut")
		}
	})
}
