package election

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"trainmaster/master/election/detector"
	"trainmaster/master/store"
	"trainmaster/taskqueue"
)

// standby follows the stored state and watches the leader while another master leads.
//
//	following ──── silent: heartbeats missed, or dead: reset and refused ────▶ deposing ──▶ following
//	    │
//	    └── own key is the first: Campaign returns
type standby struct {
	config  Config
	follow  func(context.Context, store.Version) error // receives the stored state
	version atomic.Int64                               // revision of the stored state, as watched
	leads   func(address string)                       // receives the address of the first in the queue; "": none
	own     func() string                              // lease of the own key in the queue; "" before there is one
}

// run follows until ctx ends: then the lock is held, or the master stops.
func (s *standby) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	heartbeats, leaders, suspects, states := make(chan reception), make(chan store.Candidate), make(chan store.Candidate), make(chan store.Version, 1)
	group.Go(func() error {
		for next := range s.config.Store.WatchLeader(ctx) {
			s.leads(next.Address)
			sendTo(ctx, leaders, next)
			sendTo(ctx, suspects, next)
		}
		return context.Cause(ctx)
	})
	group.Go(func() error {
		for v := range s.config.Store.WatchState(ctx) {
			s.version.Store(v.Revision)
			select {
			case <-states:
			default:
			}
			states <- v
		}
		return context.Cause(ctx)
	})
	group.Go(func() error { return s.followState(ctx, states) })
	group.Go(func() error { return s.listen(ctx, suspects, heartbeats) })
	group.Go(func() error { return s.watch(ctx, leaders, heartbeats) })
	return group.Wait()
}

// reception is a heartbeat that the standby received from a suspect.
type reception struct {
	of   store.Candidate
	beat detector.Heartbeat
	gone bool // the connection broke, and the port refuses another one
}

// watch judges the suspect and takes over.
func (s *standby) watch(ctx context.Context, leaders <-chan store.Candidate, heartbeats <-chan reception) error {
	ticker := time.NewTicker(detector.Interval)
	defer ticker.Stop()
	watch := detector.Watch{Address: s.config.Address}
	for {
		judged := detector.Alive
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case suspect := <-leaders:
			judged = watch.Follow(suspect, s.own())
		case h := <-heartbeats:
			if h.gone {
				judged = watch.Gone(h.of.Key)
			} else {
				judged = watch.Receive(h.of.Key, h.beat, func() bool { return s.etcdAnswers(ctx) })
			}
		case <-ticker.C:
			judged = watch.Look(s.version.Load(), s.own())
		}
		if judged != detector.Alive {
			s.takeOver(ctx, watch.Candidate(), judged)
			watch.Forget()
		}
	}
}

// followEvery bounds how often the state is decoded to see whether it names new tables.
const followEvery = time.Second

// followState calls follow with the stored state.
func (s *standby) followState(ctx context.Context, states <-chan store.Version) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case v := <-states:
			if v.State != nil {
				if err := s.follow(ctx, v); err != nil && ctx.Err() == nil {
					s.config.Log.WithError(err).Warn("the state cannot be kept warm")
				}
			}
			pause(ctx, followEvery)
		}
	}
}

// etcdAnswers reports whether etcd answers this master.
func (s *standby) etcdAnswers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, detector.Interval)
	defer cancel()
	_, _, err := s.config.Store.Value(ctx, taskqueue.StepKey)
	return err == nil
}

// takeOver forces a takeover. The lock queue determines the next leader.
func (s *standby) takeOver(ctx context.Context, suspect store.Candidate, judged detector.Verdict) {
	log := s.config.Log.WithFields(logrus.Fields{"suspect": suspect.Address, "term": suspect.Revision, "found": judged})
	by := store.Takeover{
		Holddown: s.config.Holddown,
		Silent:   judged == detector.Silent,
		Exempt:   s.version.Load() < suspect.Revision,
	}
	bounded, cancel := context.WithTimeout(ctx, takeoverTimeout)
	defer cancel()
	switch err := s.config.Store.TakeOver(bounded, suspect, by); {
	case errors.Is(err, store.ErrHeldDown):
		log.Debug("the leader does not answer; the holddown of the last takeover has not ended")
	case err != nil:
		log.WithError(err).Warn("takeover failed; the leader does not answer")
	default:
		log.Warn("took over from a leader that does not answer")
	}
}

const takeoverTimeout = 2 * time.Second

// listen reads the heartbeats of the current suspect.
func (s *standby) listen(ctx context.Context, suspects <-chan store.Candidate, heartbeats chan<- reception) error {
	var next store.Candidate
	for {
		suspect := next
		receiving, stop := context.WithCancel(ctx)
		var one sync.WaitGroup
		if suspect.Address != "" && suspect.Address != s.config.Address {
			one.Go(func() { s.receive(receiving, suspect, heartbeats) })
		}
		select {
		case next = <-suspects:
		case <-ctx.Done():
		}
		stop()
		one.Wait()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// receive keeps a connection to the suspect. When the connection breaks, receive dials again: if the port refuses, the
// process has ended.
func (s *standby) receive(ctx context.Context, suspect store.Candidate, heartbeats chan<- reception) {
	var look detector.Redial
	for ctx.Err() == nil {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", suspect.Address)
		if err != nil {
			wait, gone := look.NotConnected(errors.Is(err, syscall.ECONNREFUSED))
			if gone {
				sendTo(ctx, heartbeats, reception{of: suspect, gone: true})
			}
			pause(ctx, wait)
			continue
		}
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		n := s.readBeats(ctx, conn, suspect, heartbeats)
		stop()
		conn.Close()
		pause(ctx, look.Ended(n))
	}
}

// readBeats forwards heartbeats until the connection breaks, and returns their number.
func (s *standby) readBeats(ctx context.Context, conn net.Conn, suspect store.Candidate, heartbeats chan<- reception) (n int) {
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", HeartbeatPath, suspect.Address); err != nil {
		return 0
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return 0
	}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(make([]byte, 0, 512), 4096)
	for lines.Scan() {
		var b detector.Heartbeat
		if json.Unmarshal(lines.Bytes(), &b) == nil {
			sendTo(ctx, heartbeats, reception{of: suspect, beat: b})
			n++
		}
	}
	return n
}

func sendTo[V any](ctx context.Context, c chan<- V, v V) {
	select {
	case c <- v:
	case <-ctx.Done():
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
