package pserver

import (
	"bufio"
	"errors"
	"net"
	"sync"
)

// dataPreface is what a data connection starts with: wire.Magic.
const dataPreface = "TMPS"

// door takes data connections in and knows which are open.
type door struct {
	listener net.Listener
	cfg      *Config
	shard    *shard
	socket   *socket // nil: there is none
	buffers  *buffers
	stopped  chan struct{}

	mu    sync.Mutex
	open  map[net.Conn]struct{}
	conns sync.WaitGroup
}

func newDoor(listener net.Listener, cfg *Config, shard *shard, socket *socket) *door {
	return &door{
		listener: listener, cfg: cfg, shard: shard, socket: socket, buffers: newBuffers(cfg.BufferBytes),
		stopped: make(chan struct{}), open: map[net.Conn]struct{}{},
	}
}

// run accepts until the port is closed.
func (d *door) run() error {
	for {
		nc, err := d.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		} else if err != nil {
			return err
		}
		if !d.enter(nc) {
			nc.Close()
			continue
		}
		d.conns.Go(func() {
			defer d.leave(nc)
			log := d.shard.log.WithField("peer", nc.RemoteAddr().String())
			c := &conn{
				shard: d.shard, socket: d.socket, buffers: d.buffers, limits: d.cfg, stop: d.stopped, log: log,
				nc: nc, r: bufio.NewReaderSize(nc, readAhead),
			}
			c.serve()
		})
	}
}

func (d *door) enter(nc net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.stopped:
		return false
	default:
	}
	d.open[nc] = struct{}{}
	d.shard.counters.connections.Add(1)
	return true
}

func (d *door) leave(nc net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.open, nc)
	d.shard.counters.connections.Add(-1)
}

// stop closes every connection, and returns when nobody serves one any more.
func (d *door) stop() {
	d.mu.Lock()
	close(d.stopped)
	for nc := range d.open {
		nc.Close()
	}
	d.mu.Unlock()
	d.conns.Wait()
}
