package admin

import (
	"context"
	"fmt"

	"trainmaster/cmd/internal/view"
	"trainmaster/master/evaluation"
	"trainmaster/master/rounds"
	"trainmaster/taskqueue"
)

// Evaluations reads the evaluation rounds of a job, in the order of their numbers.
func Evaluations(ctx context.Context, from Location) ([]view.Evaluation, error) {
	store, closeStore, err := from.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer closeStore()
	values, _, err := store.ReadAll(ctx, taskqueue.StateKey, evaluation.Key, rounds.RecordPrefix)
	if err != nil {
		return nil, err
	}
	if values[taskqueue.StateKey] == nil {
		return nil, from.NoSuchJob(ctx, store)
	}
	var best uint64
	if value := values[evaluation.Key]; value != nil {
		state, err := evaluation.Decode(value)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", evaluation.Key, err)
		}
		if round, ok := state.Best(); ok {
			best = round.Number
		}
	}
	delete(values, taskqueue.StateKey)
	delete(values, evaluation.Key)
	return view.Evaluations(values, best)
}
