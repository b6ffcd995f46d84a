package grpcapi

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/stats"

	"trainmaster/master"
	"trainmaster/taskqueue"
)

const maxTrainers = 256 // of one connection, without a session; and with one

// connections tracks the HTTP/2 connections of a server: it is their [stats.Handler].
type connections struct {
	master *master.Master
	ending sync.WaitGroup

	mu     sync.Mutex
	newest map[taskqueue.Ordinal]*connection // of each session: the connection of its last answered request
}

// connection is one HTTP/2 connection, with its trainers.
type connection struct {
	all  *connections
	peer string              // address
	name string              // unique
	work *semaphore.Weighted // bytes of the counted requests on streams that are not answered

	mu       sync.Mutex
	trainers map[int32]*plainTrainer      // without a session
	sessions map[taskqueue.Ordinal]uint64 // incarnations of the trainers whose requests were answered on the connection, at most maxTrainers
}

// plainTrainer is a trainer that has not joined. When its connection ends, its task is dispatched again.
type plainTrainer struct {
	name string        // unique
	busy chan struct{} // holds a token during a call: there is one at a time

	ordinal     taskqueue.Ordinal // 0 before the first task
	incarnation uint64
	progress    taskqueue.Progress
}

type connectionKey struct{}

func connectionOf(ctx context.Context) *connection {
	return ctx.Value(connectionKey{}).(*connection) //nolint:forcetypeassert // TagConn sets it
}

// TagConn implements [stats.Handler].
func (c *connections) TagConn(ctx context.Context, info *stats.ConnTagInfo) context.Context {
	peer := info.RemoteAddr.String()
	return context.WithValue(ctx, connectionKey{}, &connection{
		all: c, peer: peer, name: fmt.Sprintf("grpc-%s-%d", peer, time.Now().UnixNano()), work: semaphore.NewWeighted(maxWaitingWork),
	})
}

// HandleConn implements [stats.Handler]: it reports the end of a connection to the master.
func (c *connections) HandleConn(ctx context.Context, s stats.ConnStats) {
	if _, ended := s.(*stats.ConnEnd); ended {
		c.ending.Go(func() { c.end(connectionOf(ctx)) })
	}
}

// TagRPC implements [stats.Handler].
func (*connections) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements [stats.Handler].
func (*connections) HandleRPC(context.Context, stats.RPCStats) {}

// end ends the sessions that began on a connection, when the calls on it have ended. A trainer that joined has a few seconds to come
// back on another connection.
func (c *connections) end(of *connection) {
	of.mu.Lock()
	var gone []taskqueue.Disconnected
	for _, t := range of.trainers {
		t.busy <- struct{}{} // its call ends with the connection
		//guard:grpc-connection-end
		if t.ordinal == 0 {
			continue
		}
		gone = append(gone, taskqueue.Disconnected{Trainer: t.ordinal, Incarnation: t.incarnation})
	}
	//guard:grpc-session-connection-end
	for o, incarnation := range of.sessions {
		if c.leave(o, of) {
			gone = append(gone, taskqueue.Disconnected{Trainer: o, Incarnation: incarnation})
		}
	}
	of.mu.Unlock()
	c.master.Disconnected(gone...)
}

// observe notes a trainer with a session whose request was answered. A refusal does not prove that the session exists.
func (c *connection) observe(o taskqueue.Ordinal, incarnation uint64, err error) {
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sessions[o] != incarnation && len(c.sessions) >= maxTrainers {
		return
	}
	if c.sessions == nil {
		c.sessions = map[taskqueue.Ordinal]uint64{}
	}
	c.sessions[o] = incarnation
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	c.all.newest[o] = c
}

// left forgets a trainer that has left.
func (c *connection) left(o taskqueue.Ordinal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.sessions, o)
	c.all.leave(o, c)
}

// leave reports whether the last answered request of a session was on the connection, and forgets this. The session continues on a newer
// connection.
func (c *connections) leave(o taskqueue.Ordinal, of *connection) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	//guard:session-continues-on-newer-connection
	if c.newest[o] != of {
		return false
	}
	delete(c.newest, o)
	return true
}

// trainer returns the trainer with a number.
func (c *connection) trainer(id int32) (*plainTrainer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.trainers[id]; t != nil {
		return t, nil
	}
	if len(c.trainers) >= maxTrainers {
		return nil, fmt.Errorf("%w: expected at most %d trainer_ids on a connection", taskqueue.ErrTooManySessions, maxTrainers)
	}
	t := &plainTrainer{name: fmt.Sprintf("%s-%d", c.name, id), busy: make(chan struct{}, 1)}
	if c.trainers == nil {
		c.trainers = map[int32]*plainTrainer{}
	}
	c.trainers[id] = t
	return t, nil
}

// begin waits until no other call of the trainer is in progress.
func (t *plainTrainer) begin(ctx context.Context) error {
	select {
	case t.busy <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// done ends a call. If the trainer got its first task, its session has begun.
func (t *plainTrainer) done(r master.Reply) {
	if r.Ordinal != 0 {
		t.ordinal, t.incarnation = r.Ordinal, r.Incarnation
	}
	<-t.busy
}
