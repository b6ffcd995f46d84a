package pscontrol

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"trainmaster/master/component"
	"trainmaster/taskqueue"
)

// Cadence is the interval between checkpoints: a checkpoint is due when any nonzero limit is reached. The zero value
// means never.
type Cadence struct {
	Time   time.Duration
	Steps  uint64 // versions of the parameters; synchronous mode only
	Passes uint64 // over all datasets together
}

// ParseCadence reads "60s", "500steps", "1pass", several of them separated by commas, or
// "never".
func ParseCadence(text string) (Cadence, error) {
	var c Cadence
	if text == "never" {
		return c, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		digits := strings.TrimRight(part, "abcdefghijklmnopqrstuvwxyz")
		n, err := strconv.ParseUint(digits, 10, 32)
		switch unit := part[len(digits):]; {
		case err == nil && n > 0 && (unit == "steps" || unit == "step") && c.Steps == 0:
			c.Steps = n
		case err == nil && n > 0 && (unit == "passes" || unit == "pass") && c.Passes == 0:
			c.Passes = n
		default:
			d, err := time.ParseDuration(part)
			if err != nil || d <= 0 || c.Time != 0 {
				return Cadence{}, fmt.Errorf("cadence %q: expected a time such as 60s, 500steps, 1pass, some of them separated by commas, or never", text)
			}
			c.Time = d
		}
	}
	return c, nil
}

// progress is how far a job is, as a cadence sees it.
type progress struct {
	at     time.Time
	steps  uint64
	passes uint64
	clock  taskqueue.Clock // job clock, which continues across terms
}

func (c Cadence) due(now, last progress) bool {
	return c.Time > 0 && now.at.Sub(last.at) >= c.Time ||
		c.Steps > 0 && now.steps >= last.steps+c.Steps ||
		c.Passes > 0 && now.passes >= last.passes+c.Passes
}

// checkpointDone follows each complete checkpoint, and the read of the latest set at the begin of a term.
type checkpointDone struct {
	number int       // of checkpoints in this term, from 1
	at     *progress // of the job at the checkpoint; nil: there is no set
}

// Key implements [taskqueue.Effect].
func (checkpointDone) Key() taskqueue.EffectKey {
	return taskqueue.EffectKey{Kind: component.OnCheckpointDone}
}

// checkpointDue asks for a checkpoint, unless there was one after the given number.
type checkpointDue struct{ after int }

// Key implements [taskqueue.Effect].
func (checkpointDue) Key() taskqueue.EffectKey {
	return taskqueue.EffectKey{Kind: component.OnCheckpointDue}
}

// cadence returns the component that says when a checkpoint is due. The checkpoints component takes it and retries.
func (c *Control) cadence() component.Component {
	kinds := []taskqueue.EffectKind{taskqueue.OnPassClosed, component.OnCheckpointDone}
	if c.config.CheckpointEvery.Steps > 0 {
		kinds = append(kinds, taskqueue.OnStepCommitted)
	}
	return &part{Control: c, name: "checkpoint cadence", on: kinds, run: keepCadence}
}

// keepCadence posts checkpointDue when a checkpoint is due. The first set is due immediately: without a set, servers that are all lost
// could return with parameters of different versions.
func keepCadence(ctx context.Context, t *term, box *component.Mailbox) error {
	every := t.config.CheckpointEvery
	var last checkpointDone
	for rest := time.Duration(-1); ; {
		t.Clock().Wait(ctx, box.Changed(), rest)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		for _, e := range box.Take() {
			if done, ok := e.(checkpointDone); ok {
				last = done
			}
		}
		now, err := t.progress(ctx)
		if err != nil {
			return err
		}
		rest = -1
		switch {
		case last.number == 0: // the latest set is not read yet
		case last.at == nil || every.due(now, *last.at):
			t.Post(checkpointDue{last.number})
		case every.Time > 0:
			rest = last.at.at.Add(every.Time).Sub(now.at)
		}
	}
}

// progress returns how far the job is.
func (t *term) progress(ctx context.Context) (p progress, err error) {
	err = t.Read(ctx, func(q *taskqueue.Queue) {
		for _, set := range q.Overview().Sets {
			if set.Kind == taskqueue.Training {
				p.passes += uint64(set.Pass)
			}
		}
		last, _ := q.SyncStep()
		p.steps = last.Version
		p.clock = q.Clock()
	})
	p.at = t.Clock().Now()
	return p, err
}
