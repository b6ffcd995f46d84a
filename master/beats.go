package master

import (
	"context"
	"encoding/json"
	"net/http"
	"sync/atomic"
	"time"

	"trainmaster/master/decide"
	"trainmaster/taskqueue"
)

// freshness knows when etcd last answered this master, and which term it leads.
type freshness struct {
	answered atomic.Int64 // monotonic time since start, in nanoseconds
	term     atomic.Int64 // 0: none
	lease    atomic.Value // string: of our key in the queue for the lock
}

// queued takes the lease of our key.
func (f *freshness) queued(lease string) { f.lease.Store(lease) }

// ownLease returns the newest lease, or "" if this master has none.
func (f *freshness) ownLease() string {
	lease, _ := f.lease.Load().(string)
	return lease
}

var start = time.Now()

// heard records that etcd has just answered.
func (f *freshness) heard() { f.answered.Store(int64(time.Since(start))) }

// age is the time since etcd last answered.
func (f *freshness) age() time.Duration { return time.Since(start) - time.Duration(f.answered.Load()) }

const (
	askAfter   = 400 * time.Millisecond // of silence
	askTimeout = time.Second
)

// keepFresh sends etcd a small request when no other request did so for a while.
func (m *Master) keepFresh(ctx context.Context) {
	for ctx.Err() == nil {
		if age := m.fresh.age(); age < askAfter {
			pause(ctx, askAfter-age)
			continue
		}
		asking, cancel := context.WithTimeout(ctx, askTimeout)
		_, _, err := m.config.Store.Value(asking, taskqueue.StepKey)
		cancel()
		if err == nil {
			m.fresh.heard()
		} else {
			pause(ctx, decide.BeatEvery)
		}
	}
}

// ServeBeats sends a heartbeat, as a line of JSON, every BeatEvery until the caller disconnects. A standby sends
// heartbeats too: a master ahead of others in the lock queue is watched before it leads.
func (m *Master) ServeBeats(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := http.NewResponseController(w)
	encoder := json.NewEncoder(w)
	ticker := time.NewTicker(decide.BeatEvery)
	defer ticker.Stop()
	for {
		beat := decide.Beat{Term: uint64(m.fresh.term.Load()), Lease: m.fresh.ownLease(), AgeMs: m.fresh.age().Milliseconds()}
		if out.SetWriteDeadline(time.Now().Add(askTimeout)) != nil || encoder.Encode(beat) != nil || out.Flush() != nil {
			return
		}
		select {
		case <-ticker.C:
		case <-r.Context().Done():
			return
		}
	}
}
