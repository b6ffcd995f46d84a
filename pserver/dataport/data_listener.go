package dataport

import (
	"bufio"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	core "trainmaster/pserver/shard"
)

// Limits bound connections and their memory.
type Limits struct {
	BufferBytes  int64         // for frames in transit, and the same again for memory shared with trainers on this machine
	HelloTimeout time.Duration // for the first frame of a connection
	FrameTimeout time.Duration // for a payload after its header, and for a reply
	PullWait     time.Duration // maximum wait for a version or a migration; then the client asks again
}

// Listener accepts data connections and keeps the set of open connections.
type Listener struct {
	listener   net.Listener
	limits     *Limits
	shard      *core.Shard
	log        *logrus.Entry
	socket     *Socket // nil: there is none
	buffers    *buffers
	sharedPool sharedPool

	mu      sync.Mutex
	stopped bool
	paused  bool          // refuses connections until resume
	cut     chan struct{} // closed to end the connections that are open now
	open    map[net.Conn]struct{}
	conns   sync.WaitGroup
}

// New serves the data connections of a listener; socket is what the shard offers to trainers on this machine, nil: none.
func New(listener net.Listener, limits *Limits, shard *core.Shard, socket *Socket, log *logrus.Entry) *Listener {
	return &Listener{
		listener: listener, limits: limits, shard: shard, log: log, socket: socket, buffers: newBuffers(limits.BufferBytes),
		sharedPool: sharedPool{most: limits.BufferBytes},
		cut:        make(chan struct{}), open: map[net.Conn]struct{}{},
	}
}

// Run accepts connections until the port is closed.
func (d *Listener) Run() error {
	for {
		nc, err := d.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		} else if err != nil {
			return err
		}
		stop, ok := d.enter(nc)
		if !ok {
			nc.Close()
			continue
		}
		go func() {
			defer d.conns.Done()
			defer d.leave(nc)
			log := d.log.WithField("peer", nc.RemoteAddr().String())
			c := &conn{
				shard: d.shard, socket: d.socket, buffers: d.buffers, sharedPool: &d.sharedPool, limits: d.limits, stop: stop, log: log,
				nc: nc, r: bufio.NewReaderSize(nc, readAhead),
			}
			c.serve()
		}()
	}
}

// enter registers a connection; stop is closed when the connection must end.
func (d *Listener) enter(nc net.Conn) (stop <-chan struct{}, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped || d.paused {
		return nil, false
	}
	d.open[nc] = struct{}{}
	d.conns.Add(1)
	d.shard.Counters.Connections.Add(1)
	return d.cut, true
}

func (d *Listener) leave(nc net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.open, nc)
	d.shard.Counters.Connections.Add(-1)
}

// Stop closes all connections and returns when all of them have ended.
func (d *Listener) Stop() {
	d.mu.Lock()
	d.stopped = true
	d.cutLocked()
	d.mu.Unlock()
	d.conns.Wait()
}

// Pause closes all connections and refuses new connections until resume. It returns when all connections have ended.
func (d *Listener) Pause() (resume func()) {
	d.mu.Lock()
	d.paused = true
	d.cutLocked()
	d.mu.Unlock()
	d.conns.Wait()
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.paused = false
	}
}

func (d *Listener) cutLocked() {
	close(d.cut)
	d.cut = make(chan struct{})
	for nc := range d.open {
		nc.Close()
	}
}
