package persist

import (
	"context"
	"runtime"
	"time"
)

const (
	// atWork is the time after the last gradient during which trainers count as active.
	atWork = time.Second
	// longestSlice limits the counted time of a slice: a longer slice waits for the disk.
	longestSlice = 2 * time.Millisecond
	// shortestPause is the resolution of the system's timers.
	shortestPause = time.Millisecond
	// slowedAtMost is the maximum total rest of a checkpoint.
	slowedAtMost = 2 * time.Minute
	// writerShare is the part of a machine's processors for the checkpoint writer while trainers are active.
	writerShare = 1.0 / 8
	// writtenBy is the part of the time that a checkpoint has, after which its data are to be written: the rest is for the disk, and the other servers.
	writtenBy = 3.0 / 4
)

// throttle slows the writer of one checkpoint down while trainers are active, so that their steps take about as long as without it.
// The writer sleeps in proportion to its work: on two processors it works a quarter of the time.
//
//	work of a slice ──▶ owed += work * (1/share - 1) ──▶ sleep what is owed, once that is enough to sleep
//	                      nothing: no gradient for a second, slept two minutes for this checkpoint, or it would be too late
type throttle struct {
	gradients func() uint64 // that came so far
	rest      float64       // of each unit of work
	now       func() time.Time
	sleep     func(time.Duration)

	due   time.Time // when total is to be written; zero: there is no hurry
	total int64     // bytes, or some more
	done  int64
	work  time.Duration // for done

	seen  uint64
	at    time.Time // when gradients were found to be more than seen
	owed  time.Duration
	slept time.Duration
}

// newThrottle returns the throttle of a checkpoint of total bytes. The checkpoint must be complete at the deadline of ctx.
func newThrottle(ctx context.Context, total int64, gradients func() uint64) *throttle {
	share := min(1, writerShare*float64(runtime.GOMAXPROCS(0)))
	p := &throttle{gradients: gradients, rest: 1/share - 1, now: time.Now, sleep: time.Sleep, total: total, seen: gradients()}
	if deadline, ok := ctx.Deadline(); ok {
		p.within(time.Until(deadline))
	}
	return p
}

// within says how long the checkpoint may take.
func (p *throttle) within(limit time.Duration) {
	p.due = p.now().Add(time.Duration(writtenBy * float64(limit)))
}

// late reports whether the remaining work, without any rest, would end too late after a rest.
func (p *throttle) late(now time.Time, rest time.Duration) bool {
	left := float64(p.work) * float64(max(0, p.total-p.done)) / float64(max(1, p.done))
	return !p.due.IsZero() && now.Add(rest+time.Duration(left)).After(p.due)
}

// worked is called after each slice of work.
func (p *throttle) worked(bytes int, took time.Duration) {
	began := p.now()
	p.done += int64(bytes)
	p.work += took
	if n := p.gradients(); n != p.seen {
		p.seen, p.at = n, began
	}
	if p.slept >= slowedAtMost || began.Sub(p.at) >= atWork || p.late(began, max(p.owed, shortestPause)) {
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
