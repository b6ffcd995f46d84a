package pserver

import (
	"runtime"
	"time"
)

const (
	// atWork is how long after their last request trainers are taken to be at work.
	atWork = time.Second
	// longestSlice is what counts of a slice: what takes longer waits for something else than a processor.
	longestSlice = 2 * time.Millisecond
	// shortestPause is what the system's timers can do.
	shortestPause = time.Millisecond
	// slowedAtMost is by how much a checkpoint is made longer.
	slowedAtMost = 2 * time.Minute
	// writerShare is the part of a machine's processors that the writer of a checkpoint takes beside trainers.
	writerShare = 1.0 / 8
)

// pace holds the writer of one checkpoint back while trainers are at work, so that their steps take about as long as
// without it. What it does in a while it rests for some more: on two processors it works a quarter of the time.
//
//	work of a slice ──▶ owed += work * (1/share - 1) ──▶ sleep what is owed, once that is enough to sleep
//	                      nothing: no request for a second, or slept two minutes for this checkpoint
type pace struct {
	requests func() uint64 // handled so far
	rest     float64       // of each unit of work
	now      func() time.Time
	sleep    func(time.Duration)

	seen  uint64
	at    time.Time // when requests were found to be more than seen
	owed  time.Duration
	slept time.Duration
}

func newPace(requests func() uint64) *pace {
	share := min(1, writerShare*float64(runtime.GOMAXPROCS(0)))
	return &pace{requests: requests, rest: 1/share - 1, now: time.Now, sleep: time.Sleep, seen: requests()}
}

// worked is called after each slice of work.
func (p *pace) worked(took time.Duration) {
	began := p.now()
	if n := p.requests(); n != p.seen {
		p.seen, p.at = n, began
	}
	if p.slept >= slowedAtMost || began.Sub(p.at) >= atWork {
		p.owed = 0
		return
	}
	p.owed += time.Duration(p.rest * float64(min(took, longestSlice)))
	if p.owed < shortestPause {
		return
	}
	p.sleep(p.owed)
	slept := p.now().Sub(began)
	p.owed -= slept // more than was asked for is made good
	p.slept += slept
}
