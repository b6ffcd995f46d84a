package detector

import "time"

// Heartbeat is the heartbeat that a master sends every Interval, as a line of JSON.
type Heartbeat struct {
	Term  uint64 `json:"term"`   // create revision of its lock; 0: it does not lead
	Lease string `json:"lease"`  // of its key in the queue for the lock, hexadecimal
	AgeMs int64  `json:"age_ms"` // since etcd last answered it
}

// Intervals of heartbeats.
const (
	Interval = 200 * time.Millisecond
	//guard:missed-heartbeats
	missedLimit = 3
	MaxAge      = time.Second // a beat that knows etcd's last answer to be older counts as missed
)

// Verdict is the judgment of a standby about the leader.
type Verdict int

// The verdicts on a leader.
const (
	Alive  Verdict = iota
	Silent         // to be taken over, although it may only be overloaded
	Dead           // to be replaced: its process has ended
)

func (v Verdict) String() string { return [...]string{"alive", "silent", "dead"}[v] }

// failureDetector judges the holder of the first key in the lock queue, from the observations of a standby. It has no clock: the
// caller calls Look every Interval.
//
// A leader is dead if its connection broke and its port refuses a new connection. It is silent if missedLimit
// heartbeats in a row are missed. A heartbeat also counts as missed if etcd answers the standby but not the leader. A
// commit of the leader resets the count.
type failureDetector struct {
	missed   int
	beat     bool  // since the last look
	revision int64 // of the stored state when the first beat was missed
}

// receive records a heartbeat. It ignores a heartbeat whose sender has lost etcd, if etcd answers the standby.
func (p *failureDetector) receive(b Heartbeat, etcdAnswers bool) {
	if b.AgeMs > MaxAge.Milliseconds() && etcdAnswers {
		return
	}
	p.beat = true
}

// look counts missed heartbeats. revision is the watched revision of the stored state.
func (p *failureDetector) look(revision int64) Verdict {
	if p.beat {
		p.beat, p.missed = false, 0
		return Alive
	}
	if p.missed == 0 {
		p.revision = revision
	}
	p.missed++
	//guard:commit-clears-suspicion
	if revision != p.revision {
		p.missed = 0
		return Alive
	}
	if p.missed < missedLimit {
		return Alive
	}
	return Silent
}
