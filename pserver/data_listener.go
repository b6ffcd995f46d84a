package pserver

import (
	"bufio"
	"errors"
	"net"
	"sync"

	"trainmaster/pserver/dataport"
	core "trainmaster/pserver/shard"
)

// dataPreface is what a data connection starts with: wire.Magic.
const dataPreface = "TMPS"

// dataListener accepts data connections and keeps the set of open connections.
type dataListener struct {
	listener   net.Listener
	cfg        *Config
	shard      *core.Shard
	socket     *dataport.Socket // nil: there is none
	buffers    *buffers
	sharedPool sharedPool
	stopped    chan struct{}

	mu     sync.Mutex
	closed bool          // refuses connections between pause and resume
	cut    chan struct{} // closed to end the connections that are open now
	open   map[net.Conn]struct{}
	conns  sync.WaitGroup
}

func newDataListener(listener net.Listener, cfg *Config, shard *core.Shard, socket *dataport.Socket) *dataListener {
	return &dataListener{
		listener: listener, cfg: cfg, shard: shard, socket: socket, buffers: newBuffers(cfg.BufferBytes),
		sharedPool: sharedPool{most: cfg.BufferBytes},
		stopped:    make(chan struct{}), cut: make(chan struct{}), open: map[net.Conn]struct{}{},
	}
}

// run accepts connections until the port is closed.
func (d *dataListener) run() error {
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
			log := d.shard.Log.WithField("peer", nc.RemoteAddr().String())
			c := &conn{
				shard: d.shard, socket: d.socket, buffers: d.buffers, sharedPool: &d.sharedPool, limits: d.cfg, stop: stop, log: log,
				nc: nc, r: bufio.NewReaderSize(nc, readAhead),
			}
			c.serve()
		}()
	}
}

// enter registers a connection; stop is closed when the connection must end.
func (d *dataListener) enter(nc net.Conn) (stop <-chan struct{}, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.stopped:
		return nil, false
	default:
	}
	if d.closed {
		return nil, false
	}
	d.open[nc] = struct{}{}
	d.conns.Add(1)
	d.shard.Counters.Connections.Add(1)
	return d.cut, true
}

func (d *dataListener) leave(nc net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.open, nc)
	d.shard.Counters.Connections.Add(-1)
}

// stop closes all connections and returns when all of them have ended.
func (d *dataListener) stop() {
	d.mu.Lock()
	close(d.stopped)
	d.cutLocked()
	d.mu.Unlock()
	d.conns.Wait()
}

// pause closes all connections and refuses new connections until resume. It returns when all connections have ended.
func (d *dataListener) pause() (resume func()) {
	d.mu.Lock()
	d.closed = true
	d.cutLocked()
	d.mu.Unlock()
	d.conns.Wait()
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.closed = false
	}
}

func (d *dataListener) cutLocked() {
	close(d.cut)
	d.cut = make(chan struct{})
	for nc := range d.open {
		nc.Close()
	}
}
