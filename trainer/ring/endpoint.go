package ring

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// Member is a member of a generation.
type Member struct {
	ID      string
	Address string // host:port of its endpoint
}

// Membership is one generation.
type Membership struct {
	Generation uint64 // from 1
	Rank       int    // of this member
	Members    []Member
}

// Validate returns an error for a membership without the own rank.
func (m Membership) Validate() error {
	if m.Rank < 0 || m.Rank >= len(m.Members) {
		return fmt.Errorf("generation %d: expected a rank from 0 to %d, found %d", m.Generation, len(m.Members)-1, m.Rank)
	}
	return nil
}

// Config has the limits of an endpoint. The zero value is the default.
type Config struct {
	Silence time.Duration // without a byte, a connection is lost; default 5 s
	Forming time.Duration // longest time for the connections of a generation; default 10 s
	Log     *logrus.Entry // default: the standard logger
}

const (
	defaultSilence   = 5 * time.Second
	defaultForming   = 10 * time.Second
	pingsPerSilence  = 5
	handshakeTimeout = 3 * time.Second
	dialPause        = 50 * time.Millisecond
	// maxHandshakes is the number of connections in a handshake. Others wait, at most handshakeTimeout.
	maxHandshakes = 1024
)

// Endpoint accepts the connections of other members, for all generations.
type Endpoint struct {
	listener net.Listener
	job      [16]byte
	config   Config
	ctx      context.Context // ends with Close
	stop     context.CancelFunc
	owned    sync.WaitGroup

	mu         sync.Mutex
	generation uint64        // newest of Form
	forming    *forming      // nil: none
	changed    chan struct{} // closes when generation changes
}

// forming collects the connections of a generation.
type forming struct {
	Membership
	digest   uint64
	arrivals chan arrival
}

type arrival struct {
	rank int
	conn net.Conn
}

// Listen listens at addr for the members of a job instance.
func Listen(addr string, job [16]byte, config Config) (*Endpoint, error) {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen for members of the ring: %w", err)
	}
	config.Silence, config.Forming = cmp.Or(config.Silence, defaultSilence), cmp.Or(config.Forming, defaultForming)
	if config.Log == nil {
		config.Log = logrus.NewEntry(logrus.StandardLogger())
	}
	e := &Endpoint{listener: listener, job: job, config: config, changed: make(chan struct{})}
	e.ctx, e.stop = context.WithCancel(context.Background())
	e.owned.Go(e.accept)
	return e, nil
}

// Addr returns the address.
func (e *Endpoint) Addr() net.Addr { return e.listener.Addr() }

// Close ends the endpoint. Groups remain.
func (e *Endpoint) Close() error {
	e.stop()
	err := e.listener.Close()
	e.owned.Wait()
	return err
}

func (e *Endpoint) accept() {
	slots := make(chan struct{}, maxHandshakes)
	for {
		conn, err := e.listener.Accept()
		if err != nil {
			if e.ctx.Err() != nil {
				return
			}
			e.config.Log.WithError(err).Warn("connection to the ring not accepted")
			select {
			case <-time.After(dialPause): // too many open files, for example
			case <-e.ctx.Done():
			}
			continue
		}
		select {
		case slots <- struct{}{}:
		case <-e.ctx.Done():
			_ = conn.Close()
			return
		}
		e.owned.Go(func() {
			defer func() { <-slots }()
			if err := e.greet(conn); err != nil {
				_ = conn.Close()
				e.config.Log.WithError(err).WithField("from", conn.RemoteAddr().String()).Debug("connection to the ring refused")
			}
		})
	}
}

// greet reads a hello, answers it, and hands the connection over. It closes no connection.
func (e *Endpoint) greet(conn net.Conn) error {
	ctx, cancel := context.WithTimeout(e.ctx, handshakeTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var raw [helloSize]byte
	if _, err := io.ReadFull(conn, raw[:]); err != nil {
		return fmt.Errorf("read the handshake: %w", err)
	}
	h, err := decodeHello(&raw)
	if err != nil {
		return err
	}
	f, answer := e.admit(ctx, h)
	reply := hello{status: answer, job: h.job, generation: e.newest(), from: h.to, to: h.from, members: h.members}.encode()
	if _, err := conn.Write(reply[:]); err != nil {
		return fmt.Errorf("answer the handshake: %w", err)
	}
	if answer != welcome {
		return fmt.Errorf("handshake of rank %d in generation %d refused with status %d", h.from, h.generation, answer)
	}
	if !stop() {
		return context.Cause(ctx)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.forming != f {
		return fmt.Errorf("rank %d has connected after the generation %d was formed", h.from, h.generation)
	}
	select {
	case f.arrivals <- arrival{int(h.from), conn}:
		return nil
	default:
		return fmt.Errorf("rank %d has connected too often", h.from)
	}
}

func (e *Endpoint) newest() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.generation
}

// admit waits until the generation of a hello is known here, and judges the hello.
func (e *Endpoint) admit(ctx context.Context, h hello) (*forming, status) {
	//guard:ring-refuses-other-job
	if h.job != e.job {
		return nil, otherJob
	}
	for {
		e.mu.Lock()
		generation, f, changed := e.generation, e.forming, e.changed
		e.mu.Unlock()
		//guard:ring-refuses-old-generation
		if h.generation < generation {
			return nil, oldSender
		}
		if h.generation == generation {
			if f == nil || h.members != f.digest || int64(h.to) != int64(f.Rank) || int64(h.from) <= int64(f.Rank) || int64(h.from) >= int64(len(f.Members)) {
				return nil, otherMembers
			}
			return f, welcome
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, notYet
		}
	}
}

// Form connects the members of a generation. It returns a *PeerError for a member that cannot be reached in time, and ErrOldGeneration if
// this endpoint or another member has formed a newer generation.
func (e *Endpoint) Form(ctx context.Context, m Membership) (*Group, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	f := &forming{Membership: m, digest: m.digest(), arrivals: make(chan arrival, 2*len(m.Members))}
	e.mu.Lock()
	if m.Generation <= e.generation {
		newest := e.generation
		e.mu.Unlock()
		return nil, fmt.Errorf("form generation %d: %w: %d", m.Generation, ErrOldGeneration, newest)
	}
	e.generation, e.forming = m.Generation, f
	close(e.changed)
	e.changed = make(chan struct{})
	e.mu.Unlock()
	conns, err := e.connect(ctx, f)
	e.mu.Lock()
	if e.forming == f {
		e.forming = nil
	}
	e.mu.Unlock()
	f.drain()
	if err != nil {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
		return nil, err
	}
	return newGroup(m, conns, e.config), nil
}

// drain closes the connections that were not taken.
func (f *forming) drain() {
	for {
		select {
		case a := <-f.arrivals:
			_ = a.conn.Close()
		default:
			return
		}
	}
}

// connect dials the lower ranks, and takes the connections of the higher ranks.
func (e *Endpoint) connect(ctx context.Context, f *forming) ([]net.Conn, error) {
	bounded, cancel := context.WithTimeout(ctx, e.config.Forming)
	defer cancel()
	conns := make([]net.Conn, len(f.Members))
	type dialed struct {
		arrival
		err error
	}
	outcomes := make(chan dialed, f.Rank)
	var dialing sync.WaitGroup
	defer func() {
		cancel()
		dialing.Wait()
		for range len(outcomes) {
			if d := <-outcomes; d.conn != nil {
				_ = d.conn.Close()
			}
		}
	}()
	for rank := range f.Rank {
		dialing.Go(func() {
			conn, err := e.dial(bounded, f, rank)
			outcomes <- dialed{arrival{rank, conn}, err}
		})
	}
	for missing := len(f.Members) - 1; missing > 0; {
		var a arrival
		select {
		case d := <-outcomes:
			if d.err != nil && ctx.Err() == nil {
				if errors.Is(d.err, ErrOldGeneration) {
					return conns, fmt.Errorf("form generation %d: %w", f.Generation, d.err)
				}
				return conns, f.peerError(d.rank, d.err)
			}
			if d.err != nil {
				return conns, context.Cause(ctx)
			}
			a = d.arrival
		case a = <-f.arrivals:
		case <-bounded.Done():
			if ctx.Err() != nil {
				return conns, context.Cause(ctx)
			}
			for rank := f.Rank + 1; rank < len(conns); rank++ {
				if conns[rank] == nil {
					return conns, f.peerError(rank, fmt.Errorf("expected a connection of it within %v, found none", e.config.Forming))
				}
			}
			continue // the outcomes of dials follow
		}
		if old := conns[a.rank]; old != nil { // it has given up the first connection
			_ = old.Close()
		} else {
			missing--
		}
		conns[a.rank] = a.conn
	}
	return conns, nil
}

// dial connects to a lower rank until ctx ends.
func (e *Endpoint) dial(ctx context.Context, f *forming, rank int) (net.Conn, error) {
	for last := error(nil); ; {
		conn, err := e.greeted(ctx, f, rank)
		if err == nil || errors.Is(err, ErrOldGeneration) {
			return conn, err
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return nil, last
		case <-time.After(dialPause):
		}
	}
}

// greeted makes one connection, with its handshake.
func (e *Endpoint) greeted(ctx context.Context, f *forming, rank int) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", f.Members[rank].Address)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	err = func() error {
		raw := hello{job: e.job, generation: f.Generation, from: uint32(f.Rank), to: uint32(rank), members: f.digest}.encode()
		if _, err := conn.Write(raw[:]); err != nil {
			return fmt.Errorf("send the handshake: %w", err)
		}
		if _, err := io.ReadFull(conn, raw[:]); err != nil {
			return fmt.Errorf("expected an answer to the handshake: %w", err)
		}
		answer, err := decodeHello(&raw)
		if err != nil {
			return err
		}
		return answer.err()
	}()
	if err == nil && !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}
