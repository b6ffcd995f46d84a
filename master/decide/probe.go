package decide

import "time"

// Beat is what a master says of itself every BeatEvery, as a line of JSON.
type Beat struct {
	Term  uint64 `json:"term"`   // create revision of its lock; 0: it does not lead
	Lease string `json:"lease"`  // of its key in the queue for the lock, hexadecimal
	AgeMs int64  `json:"age_ms"` // since etcd last answered it
}

// The rhythm of beats.
const (
	BeatEvery = 200 * time.Millisecond
	//guard:missed-heartbeats
	missedBeats = 3
	MaxBeatAge  = time.Second // a beat that knows etcd's last answer to be older counts as missed
)

// Verdict is what a stand-by thinks of the leader.
type Verdict int

// The verdicts on a leader.
const (
	Alive  Verdict = iota
	Silent         // to be deposed, though it may only be too busy to be heard
	Dead           // to be deposed: it is gone
)

func (v Verdict) String() string { return [...]string{"alive", "silent", "dead"}[v] }

// Probe judges the holder of the first key in the queue for the lock, from what a stand-by
// sees of it. It has no clock: Look is called every BeatEvery.
//
// A leader is dead when its connection broke and its port refuses another one. It is silent
// when missedBeats beats in a row did not come, or came from one that etcd does not answer
// although it answers the stand-by. A commit of the leader in that time acquits it.
type Probe struct {
	missed   int
	beat     bool  // since the last look
	revision int64 // of the stored state when the first beat was missed
}

// Hears takes a beat. A beat of one that has lost etcd counts as missed, when etcd answers
// us.
func (p *Probe) Hears(b Beat, etcdAnswers bool) {
	if b.AgeMs > MaxBeatAge.Milliseconds() && etcdAnswers {
		return
	}
	p.beat = true
}

// Look counts the beats; revision is that of the stored state, as watched.
func (p *Probe) Look(revision int64) Verdict {
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
	if p.missed < missedBeats {
		return Alive
	}
	return Silent
}
