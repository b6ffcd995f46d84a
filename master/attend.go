package master

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/master/decide"
)

// Server is an index of a parameter server as registered.
type Server struct {
	Index int
	Addr  string
	Claim int64 // another one for each claim
}

// ServerRegistry says which parameter servers hold an index.
type ServerRegistry interface {
	// WatchServers calls changed with all of them, now and after each change, until ctx ends.
	WatchServers(ctx context.Context, changed func([]Server)) error
	// Evict ends the claim of a server, so that another one can take the index at once. A server that lives loses its index.
	Evict(ctx context.Context, s Server) error
}

// attendance detects parameter servers whose process is gone, while a term lasts. It holds a silent connection to each. If
// that breaks and the port refuses another one, the process is gone and its lease is of no use. A server that hangs keeps its
// port open, and one that stops does until it has freed its index: neither is evicted.
type attendance struct {
	registry ServerRegistry
	log      *logrus.Entry
}

func (a *attendance) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	var watchers sync.WaitGroup
	defer watchers.Wait()
	defer stop()
	watched := map[Server]context.CancelFunc{}
	return a.registry.WatchServers(ctx, func(now []Server) {
		held := map[Server]bool{}
		for _, s := range now {
			held[s] = true
			if watched[s] == nil {
				watching, end := context.WithCancel(ctx)
				watched[s] = end
				watchers.Go(func() { a.watch(watching, s, func() { a.evict(ctx, s) }) })
			}
		}
		for s, end := range watched {
			if !held[s] {
				end()
				delete(watched, s)
			}
		}
	})
}

// watch calls evict when the process of s is gone. It returns when ctx ends.
func (a *attendance) watch(ctx context.Context, s Server, evict func()) {
	dialer := net.Dialer{Timeout: attendTimeout, KeepAlive: attendTimeout}
	known := false // it was there: a port that refuses from now on is a process that is gone
	redials := 0   // left of those that follow a broken connection closely
	for ctx.Err() == nil {
		conn, err := dialer.DialContext(ctx, "tcp", s.Addr)
		switch {
		case err == nil:
			known, redials = true, attendRedials
			began := time.Now()
			awaitEnd(ctx, conn)
			if time.Since(began) < decide.BeatEvery { // a full port closes it each time
				pause(ctx, decide.BeatEvery)
			}
		case known && errors.Is(err, syscall.ECONNREFUSED):
			evict()
			pause(ctx, decide.BeatEvery)
		case redials > 0:
			redials--
			pause(ctx, attendPause)
		default:
			pause(ctx, decide.BeatEvery)
		}
	}
}

const (
	attendTimeout = 3 * time.Second // of a dial, and of an eviction
	// A process that is being torn down can reset a connection before it closes its port.
	attendRedials = 20
	attendPause   = 10 * time.Millisecond
)

// awaitEnd returns when the connection is closed by the peer, or ctx ends.
func awaitEnd(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	io.Copy(io.Discard, conn) //nolint:errcheck // any end is an end
}

// evict frees the index of s. ctx lasts as long as the term, and longer than the watch of s: the registry can name the others before
// the eviction has its answer.
func (a *attendance) evict(ctx context.Context, s Server) {
	bounded, cancel := context.WithTimeout(ctx, attendTimeout)
	defer cancel()
	log := a.log.WithFields(logrus.Fields{"server": s.Index, "addr": s.Addr})
	if err := a.registry.Evict(bounded, s); err != nil {
		if ctx.Err() == nil {
			log.WithError(err).Warn("parameter server died; its index is not freed yet")
		}
		return
	}
	log.Warn("parameter server died: index freed")
}
