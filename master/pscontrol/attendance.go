package pscontrol

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/master/component"
	"trainmaster/master/election/detector"
	"trainmaster/master/store"
)

// attendance detects parameter servers whose process has ended, for the length of a term. It keeps an idle connection
// to each server. A process counts as ended if the connection breaks, the port refuses a new connection, and the server
// stops renewing its claim. The renewals are checked because a port forwarder that restarts also refuses connections. A
// server that hangs keeps its port open, and a server that stops does so until it has released its index: attendance
// evicts neither.
type attendance struct {
	registry store.Servers
	log      *logrus.Entry
	changed  func() // called after each change of the registry
}

// attendance returns the component that frees the indices of dead servers.
func (c *Control) attendance() component.Component {
	return &part{Control: c, name: "attendance", run: func(ctx context.Context, t *term, _ *component.Mailbox) error {
		return (&attendance{c.config.Registry, c.config.Log, func() { t.Post(component.ServersChanged{}) }}).run(ctx)
	}}
}

func (a *attendance) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	var watchers sync.WaitGroup
	defer watchers.Wait()
	defer stop()
	watched := map[store.Server]context.CancelFunc{}
	return a.registry.Each(ctx, func(now []store.Server) {
		//guard:registry-change-posted
		a.changed()
		held := map[store.Server]bool{}
		for _, s := range now {
			held[s] = true
			if watched[s] == nil {
				watching, end := context.WithCancel(ctx)
				watched[s] = end
				//guard:eviction-outlives-watch
				watchers.Go(func() { a.watch(watching, s, func(before int) (renewed bool) { return a.evict(ctx, s, before) }) })
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

// watch calls evict when the process of s seems to be gone, and again while s renews its claim. It returns when ctx ends.
func (a *attendance) watch(ctx context.Context, s store.Server, evict func(before int) (renewed bool)) {
	dialer := net.Dialer{Timeout: attendTimeout, KeepAlive: attendTimeout}
	known := false // a connection succeeded before: if the port refuses now, the process may have ended
	renewed := 0   // evictions in a row that found it renewing its claim
	redials := 0   // quick redials left after a broken connection
	for ctx.Err() == nil {
		rest := detector.Interval
		conn, err := dialer.DialContext(ctx, "tcp", s.Addr)
		switch {
		case err == nil:
			known, redials, renewed = true, attendRedials, 0
			began := time.Now()
			awaitEnd(ctx, conn)
			if time.Since(began) >= detector.Interval { // a full port closes it each time
				rest = 0
			}
		//guard:dead-server-evicted
		case known && errors.Is(err, syscall.ECONNREFUSED):
			//guard:eviction-repeated
			if !evict(renewed) {
				break
			}
			if renewed++; renewed < renewedLooks {
				rest = renewedPause
			}
		case redials > 0:
			redials--
			rest = attendPause
		}
		pause(ctx, rest)
	}
}

const (
	attendTimeout = 3 * time.Second // of a dial, and of an eviction
	// A process that is being torn down can reset a connection before it closes its port.
	attendRedials = 20
	attendPause   = 10 * time.Millisecond
	// A dead server seems to renew its claim for a second.
	renewedLooks = 30
	renewedPause = 50 * time.Millisecond
)

// awaitEnd returns when the connection is closed by the peer, or ctx ends.
func awaitEnd(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	io.Copy(io.Discard, conn) //nolint:errcheck // any end is an end
}

// evict frees the index of s. ctx lasts as long as the term, and longer than the watch of s: the registry can name the others before
// the eviction has its answer. It reports whether the server renews its claim; before is how often it did so in a row.
func (a *attendance) evict(ctx context.Context, s store.Server, before int) (renewed bool) {
	bounded, cancel := context.WithTimeout(ctx, attendTimeout)
	defer cancel()
	log := a.log.WithFields(logrus.Fields{"server": s.Index, "addr": s.Addr})
	err := a.registry.Evict(bounded, s)
	renewed = errors.Is(err, store.ErrRenewed)
	switch {
	case renewed && before == renewedLooks:
		log.Warn("parameter server renews its lease, but its address refuses connections")
	case renewed:
	case err == nil:
		log.Warn("parameter server died: index freed")
	case ctx.Err() == nil:
		log.WithError(err).Warn("parameter server died; its index is not freed yet")
	}
	return renewed
}
