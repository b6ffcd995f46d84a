package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/trainer"
	"trainmaster/trainer/agent/arena"
)

// Version is the version of the protocol.
const Version = 1

// Config configures an agent.
type Config struct {
	FD      int    // of the main connection
	Parent  int    // process id of the training process
	Socket  string // path of the socket for its other processes; "": there is none
	Program string // version of this program
	Job     string // name of the job, for replies
	Trainer trainer.Config
	Log     *logrus.Entry

	Servers arena.Config // of parameter servers; Log is not used
}

// agent is the state of a running agent.
type agent struct {
	config Config
	log    *logrus.Entry
	chunks *chunks
	ctx    context.Context // ends with Run
	owned  sync.WaitGroup

	answered atomic.Int64 // Unix time in nanoseconds of the last answer of a master

	joined  chan struct{} // closed when window or joinErr is set
	window  *trainer.Window
	joinErr error

	closing   chan struct{} // closed by the request close
	closeOnce sync.Once

	tasks tasks
	arena *arena.Arena

	evaluations evaluations
}

// Run serves the training process until it closes its connection or dies. The death of the process is no error.
func Run(ctx context.Context, config Config) error {
	died, err := watchParent(config.Parent)
	if err != nil {
		return err
	}
	conn, err := connectionOf(config.FD)
	if err != nil {
		return err
	}
	defer conn.Close()
	a := &agent{config: config, log: config.Log, chunks: newChunks(config.Trainer.Stores), joined: make(chan struct{}), closing: make(chan struct{})}
	ctx, cancel := context.WithCancel(ctx)
	a.ctx = ctx
	config.Servers.Log = config.Log
	a.arena = arena.New(ctx, config.Servers)
	defer func() {
		cancel()
		conn.Close()
		a.owned.Wait()
		a.arena.Close()
		a.chunks.close()
	}()
	if config.Socket != "" {
		unlisten, err := a.listen()
		if err != nil {
			return err
		}
		defer unlisten()
	}
	a.answered.Store(time.Now().UnixNano())
	a.owned.Go(func() {
		a.join()
		if err := unmapStart(); err != nil {
			a.log.WithError(err).Debug("resident memory not reduced")
		}
	})
	ended := make(chan error, 1)
	a.owned.Go(func() { ended <- a.serve(conn, true) })
	select {
	case <-died:
		a.log.Debug("the training process has died")
		return a.abandon()
	case err = <-ended:
		// A process that dies closes its sockets before its pidfd reports the end: seconds before it, if its other files have gigabytes of memory.
		//guard:closed-connection-of-a-dead-process
		if isExiting(config.Parent) {
			return a.abandon()
		}
		a.log.WithError(err).Debug("the training process has closed its connection")
	case <-a.closing:
	}
	//guard:closed-connection-leaves-in-order
	return errors.Join(a.leave(), protocolError(err))
}

// protocolError returns the error of a connection with invalid frames.
func protocolError(err error) error {
	if errors.Is(err, errFrame) || errors.Is(err, errInvalid) {
		return err
	}
	return nil // also a connection that was reset: the process ended it
}

// join joins the job.
func (a *agent) join() {
	defer close(a.joined)
	config := a.config.Trainer
	config.Answered = func(trainer.Answer) { a.answered.Store(time.Now().UnixNano()) }
	a.window, a.joinErr = trainer.JoinWindow(a.ctx, config)
}

// session waits until the trainer has joined.
func (a *agent) session(ctx context.Context) (*trainer.Window, error) {
	select {
	case <-a.joined:
		return a.window, a.joinErr
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// hasJoined returns the session, nil if there is none yet.
func (a *agent) hasJoined() *trainer.Window {
	select {
	case <-a.joined:
		return a.window
	default:
		return nil
	}
}

// abandon ends the session of a process that has died, and removes the directory that the process has made for the socket.
func (a *agent) abandon() error {
	if a.config.Socket != "" {
		//guard:directory-of-a-dead-trainer-removed
		_ = errors.Join(os.Remove(a.config.Socket), os.Remove(filepath.Dir(a.config.Socket))) // it can have other files
	}
	if w := a.hasJoined(); w != nil {
		//guard:dead-trainer-leaves-at-once
		return w.Abandon()
	}
	return nil
}

// leave ends the session in order.
func (a *agent) leave() error {
	if w := a.hasJoined(); w != nil {
		return w.Close()
	}
	return nil
}

// listen accepts connections of the other processes of the trainer. The result ends it.
func (a *agent) listen() (unlisten func(), err error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: a.config.Socket, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("socket %s: expected a path that does not exist, in a directory of this user: %w", a.config.Socket, err)
	}
	if err := os.Chmod(a.config.Socket, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	var mu sync.Mutex
	open := map[*net.UnixConn]bool{}
	a.owned.Go(func() {
		failures := 0
		for {
			conn, err := l.AcceptUnix()
			if a.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // the process has no descriptors left, until others are closed
				if failures++; failures == 1 {
					a.log.WithError(err).Warn("connection to the socket of the agent not accepted, trying again")
				}
				select {
				case <-time.After(acceptPause):
				case <-a.ctx.Done():
				}
				continue
			}
			failures = 0
			mu.Lock()
			open[conn] = true
			mu.Unlock()
			a.owned.Go(func() {
				if err := a.serve(conn, false); err != nil && !errors.Is(err, io.EOF) && a.ctx.Err() == nil {
					a.log.WithError(err).Debug("connection to the agent ended")
				}
				conn.Close()
				mu.Lock()
				delete(open, conn)
				mu.Unlock()
			})
		}
	})
	return func() {
		l.Close() // removes the socket
		mu.Lock()
		defer mu.Unlock()
		for conn := range open {
			conn.Close()
		}
	}, nil
}

// silent returns the seconds since a master has answered, if heartbeats are missing.
func (a *agent) silent() float64 {
	since := time.Since(time.Unix(0, a.answered.Load()))
	if since < silentAfter {
		return 0
	}
	return since.Round(time.Millisecond).Seconds()
}

// acceptPause is the time between attempts to accept a connection.
const acceptPause = 100 * time.Millisecond

// silentAfter is longer than three heartbeats.
const silentAfter = 10 * time.Second
