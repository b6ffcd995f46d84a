package rounds

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/master/component"
	"trainmaster/master/evaluation"
	"trainmaster/master/evaluation/metric"
	"trainmaster/taskqueue"
)

// observation is the committed state of a job, as a decision uses it.
type observation struct {
	now     taskqueue.Clock
	set     int // the evaluation dataset
	known   bool
	version uint64
	passes  uint64
	done    bool // all passes have ended
	over    bool // the job has ended
	model   taskqueue.Model
	round   taskqueue.Round
	open    bool   // round is open
	busy    bool   // a pass of the dataset is open, of no known round
	gone    string // why the requested round of a trainer cannot begin; "": it can, or none is requested

	// Of a population. Each trainer has a model of its own.
	population bool
	wanted     string // trainer to evaluate next, or empty
	ofWhich    uint64 // generation of wanted
}

func (r *Rounds) observe(ctx context.Context, t component.Term) (o observation, err error) {
	err = t.Read(ctx, func(q *taskqueue.Queue) {
		o.now, o.passes, o.done, o.model = q.Clock(), q.ClosedPasses(), q.PassesDone(), q.Model()
		o.set, o.known = q.Set(r.config.Set)
		o.round, o.open = q.Round()
		o.busy = o.known && q.IsOpen(o.set) && !o.open
		status, _ := q.Status()
		if r.state.Due.Trainer != "" {
			if err := q.MayEvaluate(r.state.Due.Trainer); err != nil {
				o.gone = err.Error()
			}
		}
		if o.wanted, o.ofWhich = q.WantedRound(); q.HasPopulation() {
			o.population = true
			o.model = taskqueue.Model{} // no model is the model of the job
		}
		o.over = status == taskqueue.Ended || status == taskqueue.Failed
		o.version = o.model.Version
		if step, ok := q.SyncStep(); ok {
			o.version = step.Version
		}
	})
	return o, err
}

// decideAll makes all decisions that are due. It returns the time until the next decision; negative: none is due by time.
func (r *Rounds) decideAll(ctx context.Context, t component.Term) (rest time.Duration, err error) {
	for {
		o, err := r.observe(ctx, t)
		switch {
		case err != nil:
			return 0, err
		case o.over:
			return -1, nil
		}
		stored, err := r.decide(ctx, t, o)
		if err != nil {
			return 0, err
		}
		if !stored {
			return r.untilNext(o.now), nil
		}
	}
}

// request stores the command for a round. The round begins with a later decision, since a checkpoint set may take minutes.
func (r *Rounds) request(ctx context.Context, t component.Term, trainer string) error {
	o, err := r.observe(ctx, t)
	switch {
	case err != nil:
		return err
	case o.over:
		return fmt.Errorf("%w: no round begins", taskqueue.ErrJobOver)
	case o.population && trainer == "":
		return fmt.Errorf("%w: use master trainers evaluate", taskqueue.ErrOwnModels)
	}
	in := evaluation.Input{Version: o.version, Passes: o.passes, Command: trainer == "", Trainer: trainer}
	if due := r.state.Due.Trainer; trainer != "" && due != "" && due != trainer {
		return fmt.Errorf("%w: of trainer %s: repeat the command when it has begun", evaluation.ErrRequested, due)
	}
	if trainer != "" {
		if rerr := t.Read(ctx, func(q *taskqueue.Queue) { err = q.MayEvaluate(trainer) }); rerr != nil || err != nil {
			return cmp.Or(rerr, err)
		}
	}
	_, err = r.apply(ctx, t, o, in)
	return err
}

// untilNext returns the time until an interval has passed, or a model is looked for again; negative: neither.
func (r *Rounds) untilNext(now taskqueue.Clock) time.Duration {
	if r.state.Due != (evaluation.Due{}) && r.state.Open == nil && r.config.Models != nil {
		return retryPause
	}
	every := taskqueue.Clock(r.config.Evaluation.Every.Time / time.Millisecond)
	if every == 0 {
		return -1
	}
	return ((now/every + 1) * every).Sub(now)
}

// decide makes one decision. stored reports that it has changed the state.
func (r *Rounds) decide(ctx context.Context, t component.Term, o observation) (stored bool, err error) {
	in := evaluation.Input{Version: o.version, Passes: o.passes, Gone: o.gone}
	if open := r.state.Open; open != nil && !(o.open && o.round.Number == open.Number) {
		if in.Closed, err = closed(open.Number, o.round); err != nil {
			return false, err
		}
		return r.apply(ctx, t, o, in)
	}
	if r.state.MayEnd() && o.done {
		return true, r.end(ctx, t)
	}
	if r.state.Open == nil && r.state.Due.Trainer == "" {
		in.Trainer, in.Generation = o.wanted, o.ofWhich
	}
	in.Ending = o.done && o.known && !o.busy // the end waits for the dataset, and for a pass of an unknown round
	trial := in
	trial.Model = "to be pinned"
	_, decisions, err := evaluation.Decide(o.now, r.config.Evaluation, r.state, trial)
	switch {
	case err != nil:
		return false, err
	case begins(decisions) && o.known && !o.busy:
		return r.begin(ctx, t, o, in)
	case begunOf(decisions) != "" && (!o.known || o.busy): // the round of the trainer waits for the dataset
		return false, nil
	}
	return r.apply(ctx, t, o, in)
}

// begins reports whether decisions need the model of the job.
func begins(decisions []evaluation.Decision) bool {
	return slices.ContainsFunc(decisions, func(d evaluation.Decision) bool {
		return (d.Action == evaluation.Begin || d.Action == evaluation.Skip) && d.Round.Trainer == ""
	})
}

// begunOf returns the trainer whose round begins; "": none does.
func begunOf(decisions []evaluation.Decision) string {
	for _, d := range decisions {
		if d.Action == evaluation.Begin {
			return d.Round.Trainer
		}
	}
	return ""
}

// begin begins a round with the current model, or decides without a model if there is none.
func (r *Rounds) begin(ctx context.Context, t component.Term, o observation, in evaluation.Input) (stored bool, err error) {
	if r.config.Models == nil {
		in.Model, in.Of = o.model.Path, o.model.Version
		return r.apply(ctx, t, o, in)
	}
	err = r.config.Models.Pin(ctx, func(model string, version uint64) error {
		in.Model, in.Of = model, version
		stored, err = r.apply(ctx, t, o, in)
		return err
	})
	if errors.Is(err, ErrNoModel) {
		return r.apply(ctx, t, o, in) // the triggers wait for a model; at the end of the job the round is skipped
	}
	return stored, err
}

// closed returns the result of a round. last is the newest round of the queue. If it is another one, a restore has lost the round.
func closed(number uint64, last taskqueue.Round) (*evaluation.Closed, error) {
	c := &evaluation.Closed{Round: number}
	if last.Number != number {
		return c, nil
	}
	c.NotFinite, c.Outcome, c.SetAside = last.NotFinite, last.Outcome, last.SetAside
	//guard:no-figures-of-an-abandoned-round
	if last.Results == 0 || last.Outcome != "" { // figures of a part of the data are of no use
		return c, nil
	}
	set, err := metric.Decode(last.Metrics)
	if err != nil {
		return nil, fmt.Errorf("%w: metrics of round %d: %w", taskqueue.ErrDamaged, number, err)
	}
	c.Figures = set.Figures()
	return c, nil
}

// apply decides, and stores the decisions with their effects.
func (r *Rounds) apply(ctx context.Context, t component.Term, o observation, in evaluation.Input) (stored bool, err error) {
	next, decisions, err := evaluation.Decide(o.now, r.config.Evaluation, r.state, in)
	if err != nil {
		return false, err
	}
	encoded := next.Encode()
	if len(decisions) == 0 && bytes.Equal(encoded, r.state.Encode()) {
		return false, nil
	}
	with := taskqueue.StoreKeys{Writes: []taskqueue.Write{{Key: evaluation.Key, Value: encoded}}}
	var event taskqueue.Event = &with
	for _, d := range decisions {
		switch d.Action {
		case evaluation.Begin:
			with.Writes = append(with.Writes, begunRecord(t, d, o.passes))
			event = &taskqueue.BeginRound{Set: o.set, Number: d.Round.Number, Version: d.Round.Version, Model: d.Round.Model, Trainer: d.Round.Trainer}
		case evaluation.Close:
			writes, err := r.closedRecord(ctx, t, d, in.Closed, o.round.Results)
			if err != nil {
				return false, err
			}
			with.Writes = append(with.Writes, writes...)
			//guard:trainer-round-not-in-the-strategy
			if o.population || d.Round.Trainer == "" && in.Closed.SetAside == 0 {
				with.Ended = &taskqueue.EndedRound{
					Number: d.Round.Number, Figures: figuresOf(in.Closed), Trainer: d.Round.Trainer, Outcome: in.Closed.Outcome, NotFinite: in.Closed.NotFinite,
				}
			}
		case evaluation.End:
			event = &taskqueue.EndJob{Failed: next.Stop == evaluation.Diverged, Reason: string(next.Stop) + ": " + d.Reason}
		}
	}
	switch ev := event.(type) {
	case *taskqueue.BeginRound:
		ev.With = with
	case *taskqueue.EndJob:
		ev.With = with
	}
	for waits := true; waits; { // tasks of earlier rounds return some at a time
		a, err := t.Submit(ctx, event)
		if err != nil {
			return false, err
		}
		waits = a.Kind == taskqueue.AnswerWait
	}
	r.state = next
	r.log(decisions, in.Closed)
	return true, nil
}

func (r *Rounds) log(decisions []evaluation.Decision, closed *evaluation.Closed) {
	for _, d := range decisions {
		fields := logrus.Fields{"reason": d.Reason}
		if d.Round.Number > 0 {
			fields["round"], fields["model"], fields["version"] = d.Round.Number, d.Round.Model, d.Round.Version
		}
		if d.Action == evaluation.Close {
			for _, f := range closed.Figures {
				fields[f.Name] = f.Value
			}
			if d.Round.Trainer != "" {
				fields["trainer"] = d.Round.Trainer
			} else if closed.SetAside > 0 {
				fields["set_aside"] = closed.SetAside
			} else if err := r.writeFigures(closed); err != nil {
				r.config.Log.WithError(err).Warn("figures not written")
			}
		}
		r.config.Log.WithFields(fields).Info(actions[d.Action])
		if d.Action == evaluation.Close && d.Round.Trainer == "" && len(closed.Figures) > 0 && closed.SetAside == 0 {
			r.warnOfMissing(figuresOf(closed))
		}
	}
}

// warnOfMissing logs the figures by which the job decides, and which a round does not have: they may be misspelled.
func (r *Rounds) warnOfMissing(found map[string]float64) {
	names := strings.Join(slices.Sorted(maps.Keys(found)), ", ")
	warn := func(figure, from string) {
		if _, ok := found[figure]; !ok {
			r.config.Log.WithFields(logrus.Fields{"expected": figure, "found": names, "from": from}).Warn("figure missing in a round")
		}
	}
	warn(r.config.Evaluation.Best.Figure, "--best-metric")
	for _, figure := range slices.Sorted(maps.Keys(r.config.Figures)) {
		warn(figure, r.config.Figures[figure])
	}
}

// writeFigures writes the figures of a round that has ended.
func (r *Rounds) writeFigures(closed *evaluation.Closed) error {
	if r.config.Metrics == nil {
		return nil
	}
	return WriteFigures(r.config.Metrics, figuresOf(closed))
}

// WriteFigures writes figures as lines of name=value, in the order of their names, by one call of Write.
func WriteFigures(w io.Writer, figures map[string]float64) error {
	var lines bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(figures)) {
		fmt.Fprintf(&lines, "%s=%v\n", name, figures[name])
	}
	_, err := w.Write(lines.Bytes())
	return err
}

func figuresOf(closed *evaluation.Closed) map[string]float64 {
	figures := map[string]float64{}
	for _, f := range closed.Figures {
		figures[f.Name] = f.Value
	}
	return figures
}

var actions = map[evaluation.Action]string{
	evaluation.Begin: "evaluation round began", evaluation.Close: "evaluation round ended", evaluation.Keep: "model is among the best",
	evaluation.Drop: "model is no longer among the best", evaluation.Skip: "evaluation round skipped", evaluation.End: "evaluation ends the job",
}

// end ends a job whose passes have ended.
func (r *Rounds) end(ctx context.Context, t component.Term) error {
	_, err := t.Submit(ctx, &taskqueue.EndJob{})
	if errors.Is(err, taskqueue.ErrJobOver) {
		return nil
	}
	return err
}

// RecordPrefix begins the keys of records of rounds.
const RecordPrefix = taskqueue.RoundRecordPrefix

// RecordKey returns the key of the record of a round.
func RecordKey(number uint64) string { return fmt.Sprintf("%s%08d", RecordPrefix, number) }

// KeptRecords is the number of rounds whose records are kept.
const KeptRecords = 1000

// Record describes a round for users. Began and Ended are times of the master's wall clock, by which nothing is decided.
type Record struct {
	Round   uint64             `json:"round"`
	Version uint64             `json:"version"`
	Passes  uint64             `json:"passes"` // of the training data that had ended
	Model   string             `json:"model"`
	Trainer string             `json:"trainer,omitempty"` // whose own model it is, instead of Model
	Reason  string             `json:"reason"`            // of its begin
	Began   time.Time          `json:"began"`
	Ended   *time.Time         `json:"ended"`   // null: open
	Clock   [2]taskqueue.Clock `json:"clock"`   // job clock at begin and end, in milliseconds
	Results int                `json:"results"` // tasks with metrics
	Figures map[string]float64 `json:"figures"`
	Outcome string             `json:"outcome,omitempty"`
	// SetAside is the number of tasks that were set aside. The figures are of the other tasks.
	SetAside int `json:"set_aside,omitempty"`
}

func (rec Record) write() taskqueue.Write {
	b, err := json.Marshal(rec)
	if err != nil {
		panic(err) // all numbers are finite
	}
	return taskqueue.Write{Key: RecordKey(rec.Round), Value: b}
}

// RecordsAt returns the given records as a job has them at an earlier state, the value of [evaluation.Key]. Records of later rounds are left
// out, and the open round has no result. last is the key of the last record.
func RecordsAt(state []byte, all map[string][]byte) (records []taskqueue.Write, last string, err error) {
	var s evaluation.State
	if state != nil {
		if s, err = evaluation.Decode(state); err != nil {
			return nil, "", fmt.Errorf("read %s: %w", evaluation.Key, err)
		}
	}
	last = RecordKey(s.Rounds)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if strings.HasPrefix(key, RecordPrefix) && key <= last {
			records = append(records, taskqueue.Write{Key: key, Value: all[key]})
		}
	}
	if s.Open != nil {
		last = RecordKey(s.Open.Number)
		var rec Record
		if err := json.Unmarshal(all[last], &rec); err == nil { // without it, the record lacks the reason
			rec.Ended, rec.Clock[1], rec.Results, rec.Figures, rec.Outcome, rec.SetAside = nil, 0, 0, map[string]float64{}, "", 0
			records = append(records, rec.write())
		}
	}
	return records, last, nil
}

// wallTime returns the time for people.
func wallTime(t component.Term) time.Time { return t.Clock().Now().UTC().Truncate(time.Millisecond) }

func begunRecord(t component.Term, d evaluation.Decision, passes uint64) taskqueue.Write {
	return Record{
		Round: d.Round.Number, Version: d.Round.Version, Passes: passes, Model: d.Round.Model, Trainer: d.Round.Trainer, Reason: d.Reason, Began: wallTime(t),
		Clock: [2]taskqueue.Clock{d.Round.Begin}, Figures: map[string]float64{},
	}.write()
}

// closedRecord returns the writes of the record of a round that has ended. The begin of the round is in its stored record.
func (r *Rounds) closedRecord(ctx context.Context, t component.Term, d evaluation.Decision, c *evaluation.Closed, results int) ([]taskqueue.Write, error) {
	number := d.Round.Number
	rec := Record{Round: number, Version: d.Round.Version, Model: d.Round.Model, Trainer: d.Round.Trainer, Began: wallTime(t)}
	value, _, err := r.config.Store.Value(ctx, RecordKey(number))
	//guard:record-of-a-round-kept
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", RecordKey(number), err)
	}
	if value != nil {
		_ = json.Unmarshal(value, &rec) // without it, the record lacks the reason
	}
	rec.Ended, rec.Clock, rec.Outcome = new(wallTime(t)), [2]taskqueue.Clock{d.Round.Begin, d.Round.End}, d.Reason
	rec.Results, rec.Figures, rec.SetAside = results, figuresOf(c), c.SetAside
	if c.Figures == nil {
		rec.Results = 0
	}
	writes := []taskqueue.Write{rec.write()}
	if number > KeptRecords {
		writes = append(writes, taskqueue.Write{Key: RecordKey(number - KeptRecords), Delete: true})
	}
	return writes, nil
}

// ErrNoModel is returned by Models if there is no model to evaluate yet.
var ErrNoModel = errors.New("no model to evaluate")
