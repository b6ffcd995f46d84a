package ring

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// PeerError is the error of a collective that lost a member.
type PeerError struct {
	Member Member
	Rank   int
	Err    error
}

func (e *PeerError) Error() string {
	return fmt.Sprintf("member %q (rank %d, %s): %v", e.Member.ID, e.Rank, e.Member.Address, e.Err)
}
func (e *PeerError) Unwrap() error { return e.Err }

func (m Membership) peerError(rank int, err error) *PeerError {
	return &PeerError{m.Members[rank], rank, err}
}

// Errors of collectives.
var (
	// ErrSilent is wrapped if no byte of a member has arrived for the time of Config.Silence.
	ErrSilent = errors.New("no byte has arrived")
	// ErrGone is wrapped if a member has closed its connection.
	ErrGone = errors.New("the connection was closed")
	// ErrEnded is wrapped if a member has ended the generation, without a failure.
	ErrEnded = errors.New("a member has ended the generation")
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("the group is closed")
)

// Group has the connections of one generation. One goroutine at a time calls its methods, but for Abort. All members must make the same calls in the
// same order.
type Group struct {
	Membership
	silence   time.Duration
	conns     []*conn       // by rank; nil: the own rank
	operation atomic.Uint32 // number of the last collective

	once   sync.Once
	failed chan struct{} // closes after the first error
	err    error         // the first error, after failed

	readers sync.WaitGroup
	owned   sync.WaitGroup // pings, and the ends of connections
}

// conn is the connection to a member.
type conn struct {
	net.Conn
	rank   int
	broken chan struct{} // closes when the reader has ended
	err    error         // why, after broken

	operations chan *operation // for the reader
	free, full chan []float32  // memory for contributions, and contributions to add
	reading    []float32       // of the reader: the contribution that arrives

	writing sync.Mutex
	header  [frameSize]byte
	torn    bool // a frame was written in part
}

// window is the number of blocks that a member reads from another member before it adds them.
const window = 2

func newGroup(m Membership, conns []net.Conn, config Config) *Group {
	g := &Group{Membership: m, silence: config.Silence, conns: make([]*conn, len(conns)), failed: make(chan struct{})}
	for rank, c := range conns {
		if c == nil {
			continue
		}
		peer := &conn{Conn: c, rank: rank, broken: make(chan struct{}), operations: make(chan *operation, 1), free: make(chan []float32, window), full: make(chan []float32, window)}
		for range window {
			peer.free <- nil // allocated with the first use
		}
		g.conns[rank] = peer
	}
	for _, c := range g.conns {
		if c != nil {
			g.readers.Go(func() {
				c.err = g.read(c)
				close(c.broken)
				if _, named := errors.AsType[*PeerError](c.err); named || errors.Is(c.err, ErrEnded) { // an abort
					_ = g.lost(c, c.err)
				}
			})
			g.owned.Go(func() { g.ping(c) })
		}
	}
	return g
}

// Size returns the number of members.
func (g *Group) Size() int { return len(g.conns) }

// Abort ends the group: collectives in progress, here and at the other members, return an error that wraps ErrEnded. Any goroutine may call it.
func (g *Group) Abort(reason string) { g.fail(noMember, fmt.Errorf("%w: %s", ErrEnded, reason)) }

// Close ends the group. Messages that other members have not received yet are delivered first, for at most a second.
func (g *Group) Close() {
	select {
	case <-g.failed: // the connections close after the reason was sent
	default:
		g.leave()
	}
	g.fail(noMember, ErrClosed)
	g.readers.Wait()
	g.owned.Wait()
}

// leave waits until the other members have read everything and closed, too.
func (g *Group) leave() {
	closing := time.Now().Add(closeTimeout)
	for _, c := range g.conns {
		if c != nil {
			c.closeWrite()
		}
	}
	for _, c := range g.conns {
		if c == nil {
			continue
		}
		select {
		case <-c.broken:
		case <-g.failed:
		case <-time.After(time.Until(closing)): // the member may be in a collective that this member does not make
		}
	}
}

const closeTimeout = time.Second

// fail ends the group. rank is the member that failed, or noMember.
func (g *Group) fail(rank uint32, err error) {
	g.once.Do(func() {
		g.err = err
		close(g.failed)
		for _, c := range g.conns {
			if c == nil {
				continue
			}
			_ = c.SetReadDeadline(time.Unix(1, 0))               // ends a read in progress
			_ = c.SetWriteDeadline(time.Now().Add(abortTimeout)) // a frame in progress can end before
			g.owned.Go(func() { g.bury(c, rank) })
		}
	})
}

// bury sends the reason to a member, and closes the connection after the member has closed it, or after closeTimeout: a close with unread data would
// delete the abort before it arrives.
func (g *Group) bury(c *conn, rank uint32) {
	<-c.broken
	//guard:ring-names-the-failed-member
	if !errors.Is(g.err, ErrClosed) && c.rank != int(rank) {
		c.writing.Lock()
		if reason := []byte(g.err.Error()); !c.torn {
			_ = c.write(g.frame(abort, rank), reason[:min(len(reason), maxReason)], abortTimeout, nil)
		}
		c.writing.Unlock()
	}
	c.closeWrite()
	_ = c.SetReadDeadline(time.Now().Add(closeTimeout))
	_, _ = io.Copy(io.Discard, c.Conn)
	_ = c.Close()
}

func (c *conn) closeWrite() {
	c.writing.Lock()
	defer c.writing.Unlock()
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}

const abortTimeout = 300 * time.Millisecond

func (g *Group) frame(k kind, block uint32) frame {
	return frame{kind: k, operation: g.operation.Load(), block: block}
}

// lost ends the group because of a member.
func (g *Group) lost(c *conn, err error) error {
	var named *PeerError
	switch {
	case errors.As(err, &named):
		g.fail(uint32(named.Rank), err)
	case errors.Is(err, ErrEnded):
		g.fail(noMember, g.peerError(c.rank, err))
	default:
		g.fail(uint32(c.rank), g.peerError(c.rank, err))
	}
	return g.err
}

// ping sends pings until the group ends.
func (g *Group) ping(c *conn) {
	ticker := time.NewTicker(g.silence / pingsPerSilence)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-c.broken:
			return
		case <-g.failed:
			return
		}
		if c.writing.TryLock() { // otherwise a frame is being written
			_ = c.write(frame{kind: ping}, nil, g.silence, g.failed) // the reader finds the failure
			c.writing.Unlock()
		}
	}
}

// send writes a frame of the current collective.
func (g *Group) send(c *conn, f frame, payload []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	// The reader finds a silent member. A member that waits for a third member reads nothing.
	return c.write(f, payload, unreadSilences*g.silence, g.failed)
}

const unreadSilences = 3

// write writes a frame, unless failed is closed. The caller holds writing.
func (c *conn) write(f frame, payload []byte, timeout time.Duration, failed <-chan struct{}) error {
	f.encode(&c.header, payload)
	if err := c.SetWriteDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	select {
	case <-failed: // its deadline was before
		return ErrClosed
	default:
	}
	buffers := net.Buffers{c.header[:], payload}
	_, err := buffers.WriteTo(c.Conn)
	c.torn = c.torn || err != nil
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("it has read nothing for %v", timeout)
	}
	return err
}

// operation is a collective in progress, for readers.
type operation struct {
	number uint32
	// room returns the memory for a block of a member. It may wait. took is called when the memory has the block.
	room func(c *conn, f frame) ([]byte, error)
	took func(c *conn, f frame, block []byte)
	left []int           // by rank: frames that follow
	done []chan struct{} // by rank: closes after the last frame
}

// begin begins a collective. frames returns the number of frames that a member sends.
func (g *Group) begin(frames func(rank int) int, room func(*conn, frame) ([]byte, error), took func(*conn, frame, []byte)) (*operation, error) {
	select {
	case <-g.failed:
		return nil, g.err
	default:
	}
	o := &operation{number: g.operation.Add(1), room: room, took: took, left: make([]int, len(g.conns)), done: make([]chan struct{}, len(g.conns))}
	for rank, c := range g.conns {
		if c == nil {
			continue
		}
		o.left[rank], o.done[rank] = frames(rank), make(chan struct{})
		if o.left[rank] == 0 {
			close(o.done[rank])
			continue
		}
		c.operations <- o // the reader has no other one
	}
	return o, nil
}

// read reads the frames of a member until the group ends.
func (g *Group) read(c *conn) error {
	buffered := bufio.NewReaderSize(c.Conn, 4<<10) // larger reads go to their memory
	var current *operation
	for {
		var raw [frameSize]byte
		if err := g.fill(c, buffered, raw[:]); err != nil {
			return err
		}
		f, err := decodeFrame(&raw)
		if err != nil {
			return err
		}
		switch f.kind {
		case ping:
			if err := f.check(&raw, nil); err != nil {
				return err
			}
			continue
		case abort:
			return g.aborted(c, buffered, f, &raw)
		}
		if current == nil {
			select {
			case current = <-c.operations:
			case <-g.failed:
				return g.err
			}
		}
		if f.operation != current.number {
			return fmt.Errorf("expected a frame of collective %d, found one of %d", current.number, f.operation)
		}
		payload, err := current.room(c, f)
		if err != nil {
			return err
		}
		if err := g.fill(c, buffered, payload); err != nil {
			return err
		}
		if err := f.check(&raw, payload); err != nil {
			return err
		}
		current.took(c, f, payload)
		if current.left[c.rank]--; current.left[c.rank] == 0 {
			close(current.done[c.rank])
			current = nil
		}
	}
}

// fill reads into p. Each byte renews the time of Config.Silence: pings wait behind a block on a slow link.
func (g *Group) fill(c *conn, r io.Reader, p []byte) error {
	//guard:ring-bytes-renew-silence
	for len(p) > 0 {
		//guard:ring-silent-member-lost
		if err := c.SetReadDeadline(time.Now().Add(g.silence)); err != nil {
			return fmt.Errorf("%w: %w", ErrGone, err)
		}
		select {
		case <-g.failed: // its deadline was before
			return g.err
		default:
		}
		n, err := r.Read(p)
		switch p = p[n:]; {
		case len(p) == 0:
		case errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("%w for %v", ErrSilent, g.silence)
		case err != nil:
			return fmt.Errorf("%w: %w", ErrGone, err)
		}
	}
	return nil
}

// aborted returns the error of a member that has left the group.
func (g *Group) aborted(c *conn, r io.Reader, f frame, raw *[frameSize]byte) error {
	reason := make([]byte, f.length)
	if err := g.fill(c, r, reason); err != nil {
		return err
	}
	if err := f.check(raw, reason); err != nil {
		return err
	}
	//guard:ring-member-does-not-name-itself
	if f.block >= uint32(len(g.conns)) || int(f.block) == g.Rank {
		return fmt.Errorf("%w: %s", ErrEnded, reason)
	}
	return g.peerError(int(f.block), fmt.Errorf("member %q has lost it: %s", g.Members[c.rank].ID, reason))
}

// await waits for a value of a member.
func await[T any](ctx context.Context, g *Group, c *conn, values <-chan T) (v T, err error) {
	select {
	case v = <-values:
		return v, nil
	default:
	}
	select {
	case v = <-values:
		return v, nil
	case <-c.broken:
		select {
		case v = <-values: // it came before
			return v, nil
		default:
			return v, g.lost(c, c.err)
		}
	case <-g.failed:
		return v, g.err
	case <-ctx.Done():
		g.fail(noMember, fmt.Errorf("%w: %w", ErrEnded, context.Cause(ctx)))
		return v, g.err
	}
}

// end waits for the senders and all frames of a collective. After an error, no goroutine uses the memory of the caller any more.
func (g *Group) end(ctx context.Context, o *operation, senders *sync.WaitGroup) error {
	for rank, c := range g.conns {
		if c == nil {
			continue
		}
		if _, err := await(ctx, g, c, o.done[rank]); err != nil {
			break
		}
	}
	senders.Wait()
	select {
	case <-g.failed:
		g.readers.Wait()
		return g.err
	default:
		return nil
	}
}
