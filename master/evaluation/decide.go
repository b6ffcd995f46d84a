package evaluation

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"trainmaster/master/evaluation/metric"
	"trainmaster/taskqueue"
)

// ErrBadInput is returned for an input that no job has.
var ErrBadInput = errors.New("invalid input of an evaluation")

// ErrRequested is returned for a round of a trainer while a round of another one is requested.
var ErrRequested = errors.New("another round is requested")

// ErrNotRegistered is returned for a round while the evaluation dataset cannot be registered.
var ErrNotRegistered = errors.New("evaluation data not registered")

// Input is what the caller observes.
type Input struct {
	Version uint64 // newest version of the parameters. After a rollback, the version of the manifest.
	Passes  uint64 // passes of the training data that have ended
	Model   string // newest checkpoint set, or newest path of a model. "": none yet.
	Of      uint64 // version of Model; 0: Version
	Command bool   // a command requests a round
	Ending  bool   // all training passes have ended
	Closed  *Closed

	Trainer string // a command requests a round of this trainer; "": none does
	Gone    string // why the requested round of a trainer cannot begin; "": it can

	Generation uint64 // of a population, which requests the round of Trainer; 0: a command does
}

// Closed is the end of a round. Without Figures, no result has counted.
type Closed struct {
	Round   uint64
	Figures []metric.Figure
	// NotFinite is the name of a metric that was refused in this round because it was NaN or infinite; "": none.
	NotFinite string
	// Outcome is why the round has ended without figures before its last task; "": it has not.
	Outcome string
	// SetAside is the number of tasks without a result: the figures are of a part of the data. Such a round is not ranked and ends no job,
	// except if a metric was not finite.
	SetAside int
}

// Action is what a decision asks for.
type Action string

// The actions of decisions.
const (
	Begin Action = "begin" // begin Round with its model.
	Close Action = "close" // Round has ended.
	Keep  Action = "keep"  // the model of Round is among the best.
	Drop  Action = "drop"  // the model of Round is no longer among the best.
	Skip  Action = "skip"  // a round is not needed.
	End   Action = "end"   // end the job, see State.Stop.
)

// Decision is an action with its reason.
type Decision struct {
	Action Action
	Round  Round // of Skip: only Trainer, which is empty for a round of the job
	Reason string
}

// MayEnd reports whether no round is open or due. A job that has ended its passes ends then.
func (s *State) MayEnd() bool {
	return s.Open == nil && (s.Stop != Continue || s.Final && s.Due == Due{})
}

// Decide returns the next state and what to do. now is the job clock. It returns ErrBadInput, and s, for an invalid input.
func Decide(now taskqueue.Clock, config Config, s State, in Input) (State, []Decision, error) {
	if in.Model != "" && !validModel(in.Model) {
		return s, nil, fmt.Errorf("%w: model: expected UTF-8 of at most %d bytes, found %d bytes", ErrBadInput, MaxModel, len(in.Model))
	}
	if in.Closed != nil {
		for _, f := range in.Closed.Figures {
			if math.IsNaN(f.Value) || math.IsInf(f.Value, 0) {
				return s, nil, fmt.Errorf("%w: figure %s: expected a finite number, found %v", ErrBadInput, f.Name, f.Value)
			}
		}
	}
	d := decider{now: now, config: config.withDefaults(), State: s}
	// The caller keeps s: a change of a list must not show in it.
	d.History, d.Kept = slices.Clone(s.History), slices.Clone(s.Kept)
	d.observe(in)
	//guard:result-of-the-open-round
	if in.Closed != nil && d.Open != nil && in.Closed.Round == d.Open.Number {
		d.close(in.Closed)
	}
	d.begin(in)
	return d.State, d.decisions, nil
}

func validModel(model string) bool {
	return model != "" && len(model) <= MaxModel && utf8.ValidString(model)
}

// decider is a state during one call of Decide.
type decider struct {
	now    taskqueue.Clock
	config Config
	State
	decisions []Decision
}

func (d *decider) decide(action Action, round Round, format string, args ...any) {
	d.decisions = append(d.decisions, Decision{action, round, fmt.Sprintf(format, args...)})
}

// observe sets the triggers. The first observation triggers nothing.
func (d *decider) observe(in Input) {
	every, now := d.config.Every, uint64(max(d.now, 0))
	if !d.Begun {
		d.Begun, d.Seen = true, Seen{in.Version, in.Passes, now}
	}
	d.Due.Steps = passed(&d.Seen.Version, in.Version, every.Steps) || d.Due.Steps
	d.Due.Passes = passed(&d.Seen.Passes, in.Passes, every.Passes) || d.Due.Passes
	isTime := passed(&d.Seen.Time, now, uint64(every.Time/time.Millisecond))
	//guard:no-round-by-time-after-the-last
	if isTime && !d.Final { // else rounds that take longer than the interval would keep the job open
		d.Due.Time = true
	}
	d.Due.Command = d.Due.Command || in.Command
	d.Due.Trainer = cmp.Or(d.Due.Trainer, in.Trainer)
	if in.Ending && !d.Final {
		d.Final, d.Due.End = true, true
	}
}

// passed reports whether now has passed a multiple of the interval. It moves seen only then, and back to a lower value: most
// observations leave the state unchanged, so it is not stored with each commit.
func passed(seen *uint64, now, every uint64) bool {
	due := every > 0 && now/every > *seen/every
	//guard:triggers-count-once
	if due || now < *seen {
		*seen = now
	}
	return due
}

// begin begins a round if one is due and none is open.
func (d *decider) begin(in Input) {
	last := Round{}
	for _, r := range slices.Backward(d.History) {
		if r.Trainer == "" {
			last = r
			break
		}
	}
	due := d.Due.ofJob()
	switch {
	case d.Stop != Continue:
		d.Due = Due{}
	//guard:one-open-round
	case d.Due == Due{} || d.Open != nil:
	//guard:trainer-round-after-the-end-of-a-round
	case d.Due.Trainer != "" && in.Closed != nil: // with the next decision: a rule of a strategy can end the job with the end of the round
	case d.Due.Trainer != "" && in.Gone != "":
		d.decide(Skip, Round{Trainer: d.Due.Trainer}, "trainer %s: %s", d.Due.Trainer, in.Gone)
		d.Due = due
		d.begin(in)
	case d.Due.Trainer != "":
		d.Open = &Round{Number: d.Rounds + 1, Version: in.Version, Trainer: d.Due.Trainer, Begin: d.now}
		why := fmt.Sprintf("command (version %d", in.Version)
		if in.Generation > 0 && in.Trainer == d.Due.Trainer {
			why = fmt.Sprintf("population (generation %d", in.Generation)
		}
		d.decide(Begin, *d.Open, "%s, %s)", why, count(in.Passes, "pass", "passes"))
		d.Due = due
	case in.Model == "" && in.Ending:
		d.Due = Due{}
		d.decide(Skip, Round{}, "no model at the end of the job")
	case in.Model == "": // the triggers wait for a model
	case d.Due == Due{End: true} && last.Model == in.Model && last.Version == cmp.Or(in.Of, in.Version):
		d.Due = Due{}
		d.decide(Skip, Round{}, "round %d has evaluated the last model, of version %d", last.Number, last.Version)
	default:
		d.Open = &Round{Number: d.Rounds + 1, Version: cmp.Or(in.Of, in.Version), Model: in.Model, Begin: d.now}
		d.decide(Begin, *d.Open, "%s (version %d, %s)", d.Due.reason(d.config.Every), in.Version, count(in.Passes, "pass", "passes"))
		d.Due = Due{}
	}
}

func (due Due) reason(every Every) string {
	var list []string
	for _, t := range []struct {
		due  bool
		text string
	}{
		{due.Steps, "every " + count(every.Steps, "step", "steps")},
		{due.Passes, "every " + count(every.Passes, "pass", "passes")},
		{due.Time, fmt.Sprintf("every %v", every.Time)},
		{due.Command, "command"},
		{due.End, "end of the job"},
	} {
		if t.due {
			list = append(list, t.text)
		}
	}
	return strings.Join(list, ", ")
}

// count returns a number with its noun: 1 pass, 2 passes.
func count(n uint64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// close ends the open round.
func (d *decider) close(closed *Closed) {
	r := *d.Open
	r.End = d.now
	for _, f := range closed.Figures {
		//guard:figures-of-a-part-not-ranked
		if r.Trainer != "" || closed.SetAside > 0 {
			break
		}
		if f.Name == d.config.Best.Figure {
			r.Score = &f.Value
		}
		if f.Name == d.config.Loss {
			r.Loss = &f.Value
		}
	}
	d.Open = nil
	d.Rounds = r.Number
	d.History = append(d.History, r)
	//guard:history-bounded
	d.History = d.History[max(0, len(d.History)-MaxHistory):]
	switch {
	//guard:trainer-round-not-ranked
	case r.Trainer != "":
		d.decide(Close, r, "%s", cmp.Or(closed.Outcome, "of trainer "+r.Trainer))
		return
	case closed.SetAside > 0:
		d.decide(Close, r, "not ranked: %s set aside", count(uint64(closed.SetAside), "task was", "tasks were"))
	case closed.Outcome != "":
		d.decide(Close, r, "%s", closed.Outcome)
	case r.Score == nil:
		d.decide(Close, r, "no figure %s", d.config.Best.Figure)
	default:
		d.decide(Close, r, "%s is %v", d.config.Best.Figure, *r.Score)
		d.rank(r)
	}
	if d.Stop == Continue {
		if d.judge(r, closed.NotFinite); d.Stop != Continue {
			d.Ended = d.now
		}
	}
	//guard:lowest-loss-kept
	if r.Loss != nil && (d.Lowest == nil || *r.Loss < *d.Lowest) {
		d.Lowest = r.Loss
	}
}

// rank puts a round among the best ones. A model has the place of its newest round. Of equal rounds, the earlier one is better.
func (d *decider) rank(r Round) {
	best, ok := d.Best()
	if d.Since++; !ok || d.config.Best.better(*r.Score, *best.Score) {
		d.Since = 0
	}
	before := slices.Clone(d.Kept)
	d.Kept = slices.DeleteFunc(d.Kept, func(k Round) bool { return k.Model == r.Model })
	at := slices.IndexFunc(d.Kept, func(k Round) bool { return d.config.Best.better(*r.Score, *k.Score) })
	if at < 0 {
		at = len(d.Kept)
	}
	d.Kept = slices.Insert(d.Kept, at, r)
	dropped := slices.Clone(d.Kept[min(len(d.Kept), d.config.KeepBest):])
	d.Kept = d.Kept[:len(d.Kept)-len(dropped)]
	if at < len(d.Kept) {
		d.decide(Keep, r, "number %d of the best %d by %s", at+1, d.config.KeepBest, d.config.Best)
	}
	for _, k := range dropped {
		if slices.ContainsFunc(before, func(b Round) bool { return b.Model == k.Model }) {
			d.decide(Drop, k, "%d models are better by %s than %v", d.config.KeepBest, d.config.Best, *k.Score)
		}
	}
}

// judge decides whether the round ends the job.
func (d *decider) judge(r Round, notFinite string) {
	c := d.config
	stop := func(s Stop, format string, args ...any) {
		d.Stop = s
		d.decide(End, r, format, args...)
	}
	switch {
	case notFinite != "":
		stop(Diverged, "%s is not a finite number", notFinite)
	//guard:divergence-by-factor
	case c.Diverged > 0 && r.Loss != nil && d.Lowest != nil && *d.Lowest > 0 && *r.Loss > c.Diverged**d.Lowest:
		stop(Diverged, "%s is %v, more than %v times the lowest, %v", c.Loss, *r.Loss, c.Diverged, *d.Lowest)
	case r.Score == nil:
	case c.Target != nil && !c.Best.better(*c.Target, *r.Score):
		stop(TargetReached, "%s is %v, and the target is %v", c.Best.Figure, *r.Score, *c.Target)
	//guard:rounds-without-progress
	case c.Patience > 0 && d.Since >= c.Patience:
		best, _ := d.Best()
		stop(NoProgress, "no better %s in %d rounds: %v in round %d", c.Best, d.Since, *best.Score, best.Number)
	}
}
