package trainer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"

	"trainmaster/trainer/session"
)

const (
	dialTimeout   = 3 * time.Second
	answerTimeout = 10 * time.Second // of all calls but long polls
)

// link calls the current leader and follows changes of the leader.
//
// The connections of a paused master or a failed machine stay open. A short call detects this
// by its timeout and closes the connection. Long calls (waiting for a task, the scan of a
// dataset, a step) are repeated on the next connection. Heartbeats ensure that a short call is
// always in progress.
type link struct {
	locate   Locator
	log      *logrus.Entry
	patience time.Duration // answerTimeout, but in tests
	answered func(Answer)  // may be nil
	protocol Protocol      // "": GRPC
	options  []grpc.DialOption

	mu      sync.Mutex
	client  *connection // nil: there is none
	closing sync.WaitGroup
}

// newLink checks the configuration. It connects with the first call.
func newLink(c Config) (*link, error) {
	if c.Locate == nil {
		return nil, errors.New("trainer.Config.Locate is nil: expected where the master is")
	}
	if c.Protocol != "" && !slices.Contains(Protocols, c.Protocol) {
		return nil, fmt.Errorf("trainer.Config.Protocol: expected one of %v, found %q", Protocols, c.Protocol)
	}
	if c.Log == nil {
		c.Log = logrus.NewEntry(logrus.StandardLogger())
	}
	if len(c.DialOptions) > 0 && c.Protocol == NetRPC {
		return nil, errors.New("trainer.Config.DialOptions: expected none with net/rpc, which has no TLS")
	}
	return &link{locate: c.Locate, log: c.Log, patience: answerTimeout, answered: c.Answered, protocol: c.Protocol, options: c.DialOptions}, nil
}

// connection is a connection to one master.
type connection struct {
	transport
	addr string
}

// transport makes calls over a connection. The requests and replies are the messages of package wire, and so are its errors.
type transport interface {
	// start begins a call, and sends its outcome. The end of ctx abandons it.
	start(ctx context.Context, method string, request, reply any) <-chan error
	// close ends the connection and its calls. A connection to a frozen machine takes seconds.
	close()
}

// Protocol is the protocol of the calls to a master.
type Protocol string

// The protocols. A master serves both at one address.
const (
	GRPC   Protocol = "grpc"
	NetRPC Protocol = "netrpc"
)

// Protocols lists all protocols.
var Protocols = []Protocol{GRPC, NetRPC}

// call repeats a request until it is answered or ctx ends. Each attempt has its own reply, since gob does not set fields that are zero.
func call[Reply any](ctx context.Context, l *link, method string, request any) (*Reply, error) {
	began, warned := time.Now(), time.Time{}
	for n := 0; ; n++ {
		reply := new(Reply)
		addr, moved, err := l.locate.Leader(ctx)
		if err != nil {
			return nil, err
		}
		client, err := l.connect(ctx, addr)
		if err == nil {
			err = l.attempt(ctx, client, moved, method, request, reply)
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if session.Classify(err) == session.Answered {
			if l.answered != nil {
				l.answered(Answer{Call: method, Master: client.addr, Took: time.Since(began)})
			}
			return reply, err
		}
		l.drop(client)
		//guard:other-job-at-a-fixed-address
		if _, fixed := l.locate.(At); fixed && errors.Is(err, ErrOtherJob) {
			return nil, fmt.Errorf("master at %s: %w: name its job (--job, in Python job=), or the master of the job (--addr, addr=)", addr, err)
		}
		if errors.Is(err, errMoved) {
			n = -1 // the next leader is known already
			continue
		}
		switch foreign, isDue := errors.Is(err, errNoMaster), time.Since(warned) >= warnEvery; {
		case foreign && isDue:
			warned = time.Now()
			l.log.WithError(err).WithField("call", method).Warn("no master at this address, trying on")
		case isDue && time.Since(began) >= longSilence:
			warned = time.Now()
			l.log.WithError(err).WithField("call", method).Warn("no answer from the master, trying on")
		case n == 0 && !foreign:
			l.log.WithError(err).WithField("call", method).Info("no answer from the master yet, trying on")
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-moved: // no pause is needed: another master leads
		case <-time.After(session.Backoff(n, rand.Float64())):
		}
	}
}

const (
	// warnEvery is the interval between warnings of a call.
	warnEvery = time.Minute
	// longSilence is more than a failover takes.
	longSilence = 10 * time.Second
)

// slow are the calls that the master may answer late.
var slow = map[string]bool{"ReportDataset": true, "Next": true, "Staged": true, "Commit": true, "Flushed": true, "LastStep": true, "CutWatch": true}

var (
	// ErrOtherJob is returned if the master at a fixed address serves another job.
	ErrOtherJob = errors.New("no such job here")

	errSilent = errors.New("the master is silent")
	errMoved  = errors.New("another master leads")
	// errNoMaster: another program answers at the address.
	errNoMaster = errors.New("expected a master")
)

// attempt makes one call on one connection. It abandons the call when another master leads, because
// the called master may hang.
func (l *link) attempt(ctx context.Context, client *connection, moved <-chan struct{}, method string, request, reply any) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !slow[method] {
		ctx, cancel = context.WithTimeoutCause(ctx, l.patience, errSilent)
		defer cancel()
	}
	select {
	case err := <-client.start(ctx, method, request, reply):
		return err
	case <-moved:
		return errMoved
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// connect returns the connection to addr: the open one, or a new one in place of a connection
// to another address. A broken connection is removed by drop.
func (l *link) connect(ctx context.Context, addr string) (*connection, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.client != nil && l.client.addr == addr {
		return l.client, nil
	}
	l.closeLocked()
	var opened transport
	var err error
	if l.protocol == NetRPC {
		opened, err = dialNetRPC(ctx, addr, l.patience)
	} else {
		opened, err = openGRPC(addr, l.options)
	}
	if err != nil {
		return nil, err
	}
	l.client = &connection{opened, addr}
	return l.client, nil
}

// closeLocked closes the connection. No call waits for the end of it.
func (l *link) closeLocked() {
	if l.client != nil {
		l.closing.Go(l.client.close)
		l.client = nil
	}
}

// drop forgets a connection that failed.
func (l *link) drop(client *connection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if client != nil && l.client == client {
		l.closeLocked()
	}
}

func (l *link) close() {
	l.mu.Lock()
	l.closeLocked()
	l.mu.Unlock()
	l.closing.Wait()
}
