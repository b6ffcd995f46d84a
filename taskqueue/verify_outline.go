package taskqueue

import (
	"fmt"
	"maps"
	"slices"
)

// Outline summarizes the ledger up to a commit, so that a reader can continue without the earlier part: the datasets, the
// progress of their passes and the set-aside tasks. Its size grows only with the number of set-aside tasks and of draining
// sessions. The zero value is the outline of an empty ledger.
type Outline struct {
	Commit   uint64       `json:"commit"`
	Status   Status       `json:"status"`
	Paused   bool         `json:"paused,omitempty"`
	Draining []Ordinal    `json:"draining,omitempty"`
	Sets     []SetOutline `json:"sets"`
	Step     uint64       `json:"step,omitempty"` // the last committed one, with explicit commits
}

// SetOutline is what an outline says of one dataset.
type SetOutline struct {
	Tasks     int            `json:"tasks"`
	Kind      Kind           `json:"kind,omitempty"`
	Algorithm uint8          `json:"algorithm"` // of the order of its passes
	Seed      uint64         `json:"seed"`
	Online    bool           `json:"online,omitempty"`
	Grows     bool           `json:"grows,omitempty"` // online and not closed
	Pass      Pass           `json:"pass"`            // the newest; 0: none has begun
	Open      int            `json:"open"`            // passes: the newest ones
	Aside     []AsideOutline `json:"aside,omitempty"`
}

// AsideOutline is a task that is set aside.
type AsideOutline struct {
	Index   int  `json:"index"`
	Since   Pass `json:"since"` // the first pass that goes without it
	Dropped bool `json:"dropped,omitempty"`
}

// Outline returns the outline of the added events.
func (v *Verifier) Outline() Outline {
	o := Outline{Commit: v.last, Step: v.step, Status: v.status, Paused: v.paused, Draining: slices.Sorted(maps.Keys(v.draining)), Sets: make([]SetOutline, len(v.sets))}
	for i, s := range v.sets {
		o.Sets[i] = SetOutline{Tasks: s.tasks, Kind: s.kind, Algorithm: s.algorithm, Seed: s.seed, Online: s.online, Grows: s.grows, Pass: s.pass, Open: len(s.open)}
		for _, index := range slices.Sorted(maps.Keys(s.aside)) {
			o.Sets[i].Aside = append(o.Sets[i].Aside, AsideOutline{index, s.aside[index], s.dropped[index]})
		}
	}
	return o
}

// Outline returns the outline of a ledger that ends with the last commit of this queue.
func (q *Queue) Outline() Outline {
	o := Outline{Commit: q.commit, Status: Running, Sets: make([]SetOutline, len(q.sets))}
	switch q.status {
	case Ended, Failed:
		o.Status = q.status
	case Paused:
		o.Paused = true
	}
	if q.explicit != nil {
		o.Step = q.explicit.committed
	}
	for _, t := range q.sortedTrainers() {
		if t.draining {
			o.Draining = append(o.Draining, t.ordinal)
		}
	}
	for i, s := range q.sets {
		o.Sets[i] = SetOutline{Tasks: s.tasks, Kind: s.kind, Algorithm: s.algorithm, Seed: s.seed, Online: s.online, Grows: s.grows(), Pass: s.pass, Open: len(s.open)}
		for _, a := range s.sortedAside() {
			o.Sets[i].Aside = append(o.Sets[i].Aside, AsideOutline{a.index, a.pass, a.dropped})
		}
	}
	return o
}

// ResumeVerifier returns a verifier that continues after an outline. Passes that were open or closed at that commit are only
// reported as unseen. Later passes are reported completely.
func ResumeVerifier(o Outline) (*Verifier, error) {
	v := NewVerifier()
	v.last, v.status, v.paused, v.step = o.Commit, o.Status, o.Paused, o.Step
	for _, t := range o.Draining {
		v.draining[t] = true
	}
	for i, from := range o.Sets {
		s, err := from.resume(i)
		if err != nil {
			return nil, fmt.Errorf("%w: outline of commit %d: dataset %d: %w", ErrBadLedger, o.Commit, i, err)
		}
		v.sets = append(v.sets, s)
	}
	return v, nil
}

func (o *SetOutline) resume(set int) (*verifiedSet, error) {
	if o.Tasks < 0 || o.Tasks > maxTasks || o.Algorithm > orderArrival || o.Algorithm == orderArrival && !o.Online || o.Kind >= kinds || o.Grows && (!o.Online || o.Pass > 1) || o.Open < 0 || o.Open > int(o.Pass) {
		return nil, fmt.Errorf("%d tasks, order %d, %d of %d passes open", o.Tasks, o.Algorithm, o.Open, o.Pass)
	}
	s := &verifiedSet{tasks: o.Tasks, kind: o.Kind, algorithm: o.Algorithm, seed: o.Seed, online: o.Online, grows: o.Grows, pass: o.Pass, aside: map[int]Pass{}, dropped: map[int]bool{}}
	for _, a := range o.Aside {
		if a.Index < 0 || a.Index >= o.Tasks || a.Since == 0 {
			return nil, fmt.Errorf("task %d of %d set aside since pass %d", a.Index, o.Tasks, a.Since)
		}
		s.aside[a.Index] = a.Since
		if a.Dropped {
			s.dropped[a.Index] = true
		}
	}
	for p := Pass(1); p <= o.Pass; p++ {
		report := PassReport{Set: set, Pass: p, Tasks: o.Tasks, Unseen: true}
		if int(o.Pass-p) >= o.Open {
			s.closed = append(s.closed, report)
			continue
		}
		s.open = append(s.open, &verifiedPass{report: report, order: newOrder(o.Algorithm, o.Seed, p, o.Tasks), aside: map[int]bool{}, uncommitted: map[int]uint64{}})
	}
	return s, nil
}
