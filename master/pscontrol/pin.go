package pscontrol

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"trainmaster/master/evaluation"
)

// Newest is the model of a round in a job whose parameter servers keep no checkpoints: the parameters at the time of the evaluation.
const Newest = "newest"

const setPrefix = "set-"

// SetModel returns the name of a checkpoint set as the model of an evaluation round.
func SetModel(number uint64) string { return setPrefix + strconv.FormatUint(number, 10) }

// SetOfModel returns the number of the checkpoint set with a name of [SetModel].
func SetOfModel(model string) (number uint64, ok bool) {
	digits, ok := strings.CutPrefix(model, setPrefix)
	number, err := strconv.ParseUint(digits, 10, 64)
	return number, ok && err == nil && SetModel(number) == model
}

// Pin takes a checkpoint set of the current parameters, and calls use with its name and version. If the parameter servers keep no
// checkpoints, the name is [Newest]; if no set can be taken, the set is the newest one, or the error has the reason. No set
// is removed before use returns.
func (c *Control) Pin(ctx context.Context, use func(model string, version uint64) error) error {
	t := c.current.Load()
	if t == nil {
		return ErrNothingToCut
	}
	taken := t.checkpoints.take(ctx)
	if err := t.checkpoints.busy.Acquire(ctx); err != nil {
		return err
	}
	defer t.checkpoints.busy.Release()
	latest, _, err := t.config.Store.Value(ctx, LatestSetKey)
	if err != nil {
		return fmt.Errorf("read %s: %w", LatestSetKey, err)
	}
	if latest == nil {
		return t.pinNewest(ctx, taken, use)
	}
	at, err := t.config.Servers.SetAt(latest)
	if err != nil {
		return fmt.Errorf("read %s: %w", LatestSetKey, err)
	}
	return use(SetModel(at.Number), at.Version)
}

// pinNewest pins the parameters of servers without checkpoints. taken is the reason why there is no set.
func (t *term) pinNewest(ctx context.Context, taken error, use func(model string, version uint64) error) error {
	states, err := t.config.Servers.States(ctx)
	if err != nil {
		return err
	}
	for _, s := range states {
		if !s.Ready || s.KeepsCheckpoints {
			return errors.Join(ErrNothingToCut, taken)
		}
	}
	now, err := t.progress(ctx)
	if err != nil {
		return err
	}
	return use(Newest, now.steps)
}

// prune removes older sets, except the sets of evaluation rounds.
func (c *checkpointer) prune(ctx context.Context, cut Cut) error {
	state, _, err := c.term.config.Store.Value(ctx, evaluation.Key)
	if err != nil {
		return fmt.Errorf("read %s: %w", evaluation.Key, err)
	}
	var spared []uint64
	if state != nil {
		s, err := evaluation.Decode(state)
		if err != nil {
			return fmt.Errorf("read %s: %w", evaluation.Key, err)
		}
		//guard:model-of-a-round-spared
		for _, model := range s.Spared() {
			if n, ok := SetOfModel(model); ok {
				spared = append(spared, n)
			}
		}
	}
	return cut.Prune(ctx, c.term.config.CheckpointKeep, spared)
}
