package evaluation

import (
	"fmt"
	"slices"
	"sort"

	"trainmaster/taskqueue"
)

// naive is a second implementation, for comparison. It keeps every input and computes each decision from the whole history.
type naive struct {
	config Config
	inputs []Input
	times  []taskqueue.Clock
	rounds []Round // that ended
	alive  map[string]Round
	lost   []float64 // losses
	scores []int     // number of rounds since the best one, after each round with a figure

	open    *Round
	pending map[string]bool
	ending  bool
	stop    Stop
}

func (n *naive) best() (Round, bool) {
	list := n.ranking()
	if len(list) == 0 {
		return Round{}, false
	}
	return list[0], true
}

func (n *naive) ranking() (list []Round) {
	for _, r := range n.alive {
		list = append(list, r)
	}
	sort.Slice(list, func(i, j int) bool {
		if *list[i].Score != *list[j].Score {
			return (*list[i].Score > *list[j].Score) == n.config.Best.Max
		}
		return list[i].Number < list[j].Number
	})
	return list
}

// step returns the decisions as "action round model".
func (n *naive) step(now taskqueue.Clock, in Input) (list []string) {
	say := func(a Action, r Round) { list = append(list, fmt.Sprintf("%s %d %q", a, r.Number, r.Model)) }
	if k := len(n.inputs); k > 0 {
		before, every := n.inputs[k-1], n.config.Every
		for name, c := range map[string][3]uint64{
			"steps":  {before.Version, in.Version, every.Steps},
			"passes": {before.Passes, in.Passes, every.Passes},
			"time":   {uint64(n.times[k-1]), uint64(now), uint64(every.Time.Milliseconds())},
		} {
			for v := c[0] + 1; c[2] > 0 && v <= c[1]; v++ {
				if v%c[2] == 0 && !(name == "time" && n.ending) {
					n.pending[name] = true
				}
			}
		}
	}
	n.inputs, n.times = append(n.inputs, in), append(n.times, now)
	if in.Command {
		n.pending["command"] = true
	}
	if in.Ending && !n.ending {
		n.ending, n.pending["end"] = true, true
	}
	if c := in.Closed; c != nil && n.open != nil && n.open.Number == c.Round {
		n.close(now, c, say)
	}
	if n.stop != Continue {
		clear(n.pending)
	}
	if n.open != nil || len(n.pending) == 0 {
		return list
	}
	onlyEnd := len(n.pending) == 1 && n.pending["end"]
	if in.Model == "" && !in.Ending {
		return list
	}
	clear(n.pending)
	if k := len(n.rounds); in.Model == "" || onlyEnd && k > 0 && n.rounds[k-1].Model == in.Model && n.rounds[k-1].Version == in.Version {
		say(Skip, Round{})
		return list
	}
	n.open = &Round{Number: uint64(len(n.rounds) + 1), Version: in.Version, Model: in.Model, Begin: now}
	say(Begin, *n.open)
	return list
}

func (n *naive) close(now taskqueue.Clock, c *Closed, say func(Action, Round)) {
	r := *n.open
	n.open = nil
	r.End = now
	figure := func(name string) *float64 {
		for _, f := range c.Figures {
			if f.Name == name {
				return &f.Value
			}
		}
		return nil
	}
	r.Score, r.Loss = figure(n.config.Best.Figure), figure(n.config.Loss)
	n.rounds = append(n.rounds, r)
	say(Close, r)
	if r.Score != nil {
		before, had := n.best()
		since := 0
		if k := len(n.scores); k > 0 && had && (*r.Score == *before.Score || (*r.Score < *before.Score) == n.config.Best.Max) {
			since = n.scores[k-1] + 1
		}
		n.scores = append(n.scores, since)
		was := map[string]bool{}
		for model := range n.alive {
			was[model] = true
		}
		n.alive[r.Model] = r
		var dropped []Round
		list := n.ranking()
		for i, k := range list {
			switch {
			case i >= n.config.KeepBest:
				delete(n.alive, k.Model)
				if was[k.Model] {
					dropped = append(dropped, k)
				}
			case k.Number == r.Number:
				say(Keep, r)
			}
		}
		for _, k := range dropped {
			say(Drop, k)
		}
	}
	defer func() {
		if r.Loss != nil {
			n.lost = append(n.lost, *r.Loss)
		}
	}()
	switch {
	case c.NotFinite != "":
		n.stop = Diverged
	case n.config.Diverged > 0 && r.Loss != nil && len(n.lost) > 0 && slices.Min(n.lost) > 0 && *r.Loss > n.config.Diverged*slices.Min(n.lost):
		n.stop = Diverged
	case r.Score == nil:
	case n.config.Target != nil && (*r.Score == *n.config.Target || (*r.Score > *n.config.Target) == n.config.Best.Max):
		n.stop = TargetReached
	case n.config.Patience > 0 && n.scores[len(n.scores)-1] >= n.config.Patience:
		n.stop = NoProgress
	}
	if n.stop != Continue {
		say(End, r)
	}
}
