package detector

import "time"

// redialFirst is the first pause between two connections to a master that sends no heartbeats.
const redialFirst = 10 * time.Millisecond

// Redial decides when a standby reconnects to the master that it watches, and whether that master is gone. It has no
// clock: the caller waits.
//
// A connection that ended after heartbeats is dialed again immediately, because the port of a killed process refuses
// the next connection. Each further attempt without a heartbeat doubles the pause, up to Interval. A process that is
// terminating can reset a connection before it closes its port, and a port with too many connections accepts and closes
// each new one.
type Redial struct {
	known bool // a connection succeeded: if the port refuses from now on, the process is gone
	wait  time.Duration
}

// Ended takes the number of heartbeats of a connection that broke, and returns the pause
// before the next attempt.
func (r *Redial) Ended(heartbeats int) time.Duration {
	r.known = true
	if heartbeats > 0 {
		r.wait = 0
		return 0
	}
	return r.backOff()
}

// NotConnected takes a failed attempt; refused is true if the port refused it. It returns the
// pause before the next attempt, and whether the master is gone.
func (r *Redial) NotConnected(refused bool) (wait time.Duration, gone bool) {
	if refused || !r.known {
		r.wait = Interval
		return Interval, refused && r.known
	}
	return r.backOff(), false
}

func (r *Redial) backOff() time.Duration {
	//guard:standby-redial-backoff
	r.wait = min(max(2*r.wait, redialFirst), Interval)
	return r.wait
}
