package trainer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/rpc"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/master/netrpc/wire"
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

	mu     sync.Mutex
	client *connection // nil: there is none
}

// connection is a connection to one master.
type connection struct {
	*rpc.Client
	addr string
}

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
		if errors.Is(err, errMoved) {
			n = -1 // the next leader is known already
			continue
		}
		switch foreign := errors.Is(err, errNoMaster); {
		case foreign && (n == 0 || time.Since(warned) >= foreignEvery):
			warned = time.Now()
			l.log.WithError(err).WithField("call", method).Warn("no master at this address, trying on")
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

// foreignEvery is the interval between log lines about a program that is not a master.
const foreignEvery = time.Minute

// slow are the calls that the master may answer late.
var slow = map[string]bool{"ReportDataset": true, "Next": true, "Staged": true, "Commit": true, "Flushed": true, "LastStep": true, "CutWatch": true}

var (
	errSilent = errors.New("the master is silent")
	errMoved  = errors.New("another master leads")
	// errNoMaster: another program answers at the address.
	errNoMaster = errors.New("expected a master")
)

// attempt makes one call on one connection. It abandons the call when another master leads, because
// the called master may hang.
func (l *link) attempt(ctx context.Context, client *connection, moved <-chan struct{}, method string, request, reply any) error {
	if !slow[method] {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, l.patience, errSilent)
		defer cancel()
	}
	select {
	case c := <-client.Go(wire.Service+"."+method, request, reply, make(chan *rpc.Call, 1)).Done:
		return wire.Error(c.Error)
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
	if l.client != nil {
		l.client.Close()
		l.client = nil
	}
	answering, err := dial(ctx, addr, l.patience)
	if err != nil {
		return nil, err
	}
	l.client = &connection{answering, addr}
	return l.client, nil
}

// drop forgets a connection that failed.
func (l *link) drop(client *connection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if client != nil && l.client == client {
		client.Close()
		l.client = nil
	}
}

// dial is rpc.DialHTTP with a bound on its time.
func dial(ctx context.Context, addr string, patience time.Duration) (*rpc.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		conn.Close()
		return nil, err
	}
	if _, err := io.WriteString(conn, "CONNECT "+rpc.DefaultRPCPath+" HTTP/1.0\n\n"); err != nil {
		conn.Close()
		return nil, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodConnect})
	switch {
	case err == nil && resp.StatusCode != http.StatusOK:
		err = fmt.Errorf("%w at %s, found an answer %q%s", errNoMaster, addr, resp.Status, firstLine(resp.Body))
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF): // also from a master that stops
		err = fmt.Errorf("expected a master at %s, found that the connection was closed without an answer: %w", addr, err)
	case err != nil && strings.Contains(err.Error(), "malformed HTTP"):
		err = fmt.Errorf("%w at %s, found a program of another protocol: %w", errNoMaster, addr, err)
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return rpc.NewClient(impatient{conn, patience}), nil
}

// firstLine is the first line of an answer, after a colon.
func firstLine(body io.Reader) string {
	const most = 200
	text, _ := io.ReadAll(io.LimitReader(body, most)) // the bytes before an error are enough
	line, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	if line == "" {
		return ""
	}
	return ": " + strconv.QuoteToGraphic(line)
}

// impatient is a connection with a write deadline. net/rpc holds a lock of the connection during a write, and a write to a frozen
// machine blocks when the window is full.
type impatient struct {
	net.Conn
	patience time.Duration // for one write
}

func (c impatient) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.patience)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

func (l *link) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.client != nil {
		l.client.Close()
		l.client = nil
	}
}
