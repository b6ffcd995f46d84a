package election

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"trainmaster/master/election/detector"
	"trainmaster/taskqueue"
)

// HeartbeatPath is the path of the heartbeats on the trainer port.
const HeartbeatPath = "/beats"

// queued takes the lease of our key.
func (e *Election) queued(lease string) { e.lease.Store(lease) }

// ownLease returns the newest lease, or "" if this master has none.
func (e *Election) ownLease() string {
	lease, _ := e.lease.Load().(string)
	return lease
}

var start = time.Now()

// EtcdAnswered records that etcd has just answered.
func (e *Election) EtcdAnswered() { e.answered.Store(int64(time.Since(start))) }

// age is the time since etcd last answered.
func (e *Election) age() time.Duration { return time.Since(start) - time.Duration(e.answered.Load()) }

const (
	askAfter   = 400 * time.Millisecond // of silence
	askTimeout = time.Second
)

// KeepFresh sends etcd a small request when no other request did so for a while.
func (e *Election) KeepFresh(ctx context.Context) {
	for ctx.Err() == nil {
		if age := e.age(); age < askAfter {
			pause(ctx, askAfter-age)
			continue
		}
		asking, cancel := context.WithTimeout(ctx, askTimeout)
		_, _, err := e.config.Store.Value(asking, taskqueue.StepKey)
		cancel()
		if err == nil {
			e.EtcdAnswered()
		} else {
			pause(ctx, detector.Interval)
		}
	}
}

// ServeHeartbeats sends a heartbeat, as a line of JSON, every detector.Interval until the caller disconnects. A standby sends
// heartbeats too: a master ahead of others in the lock queue is watched before it leads.
func (e *Election) ServeHeartbeats(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := http.NewResponseController(w)
	encoder := json.NewEncoder(w)
	ticker := time.NewTicker(detector.Interval)
	defer ticker.Stop()
	for {
		beat := detector.Heartbeat{Term: uint64(e.term.Load()), Lease: e.ownLease(), AgeMs: e.age().Milliseconds()}
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
