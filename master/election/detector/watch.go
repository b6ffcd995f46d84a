package detector

import "trainmaster/master/store"

// Watch judges the suspect of one standby from the lock queue, heartbeats and connections. It has no clock, connection
// or store; a simulator drives it like a master.
//
//	following ──── silent: heartbeats missed, or dead: gone, another process, predecessor ────▶ take over
//	    ▲                                                                                        │
//	    └──────────────────────────────── Forget ◀───────────────────────────────────────────────┘
type Watch struct {
	Address string // of the standby

	candidate store.Candidate
	failures  failureDetector
}

// Candidate returns the first key in the queue for the lock.
func (w *Watch) Candidate() store.Candidate { return w.candidate }

// Follow takes the first key in the queue. own is the lease of the standby's own key, "" before
// there is one.
func (w *Watch) Follow(next store.Candidate, own string) Verdict {
	w.candidate, w.failures = next, failureDetector{}
	return w.predecessor(own)
}

// Receive records a heartbeat that was sent for a key. It calls etcdAnswers if etcd does not answer the sender.
func (w *Watch) Receive(key string, b Heartbeat, etcdAnswers func() bool) Verdict {
	switch {
	case key != w.candidate.Key:
	case b.Lease != w.candidate.Lease:
		return Dead // another process has its port
	default:
		//guard:standby-counts-heartbeat
		w.failures.receive(b, b.AgeMs <= MaxAge.Milliseconds() || etcdAnswers())
	}
	return Alive
}

// Gone says that the connection to the holder of a key broke, and that its port refuses others.
func (w *Watch) Gone(key string) Verdict {
	if key != w.candidate.Key {
		return Alive
	}
	return Dead
}

// Look must be called every Interval. revision is the watched revision of the stored state.
func (w *Watch) Look(revision int64, own string) Verdict {
	if !w.other(own) {
		return Alive
	}
	if judged := w.predecessor(own); judged != Alive {
		return judged
	}
	return w.failures.look(revision)
}

// Forget resets the probe after a verdict.
func (w *Watch) Forget() { w.failures = failureDetector{} }

// other reports whether the suspect is another master.
func (w *Watch) other(own string) bool { return w.candidate.Key != "" && w.candidate.Lease != own }

// predecessor judges a suspect with the standby's own address. The standby holds the port, so the key belongs to an
// earlier start of the same master.
func (w *Watch) predecessor(own string) Verdict {
	//guard:standby-keeps-own-lease
	if own != "" && w.other(own) && w.candidate.Address == w.Address {
		return Dead
	}
	return Alive
}
