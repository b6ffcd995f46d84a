package local

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"trainmaster/etcdstore"
	"trainmaster/taskqueue"
)

// SetAside has the number of set-aside tasks of a job and the error of one of them.
type SetAside struct {
	Tasks   int    `json:"tasks"`
	Example string `json:"example,omitempty"` // the last error of one task
}

// finished reads the end of the job from etcd: why it ended, its set-aside tasks and the number of tasks of a pass.
func (j *Job) finished(ctx context.Context) (r Result, err error) {
	store, err := etcdstore.Open(ctx, etcdstore.Config{Endpoints: []string{j.endpoint}})
	if err != nil {
		return r, err
	}
	defer store.Close()
	state, err := readState(ctx, store)
	if err != nil {
		return r, err
	}
	r.Reason = state.Reason
	for _, s := range state.Sets {
		if s.Kind == taskqueue.Training {
			r.Tasks, r.Passes = s.Tasks, int(s.Pass)
			break
		}
	}
	list, err := SetAsideTasks(ctx, store)
	if err != nil || len(list) == 0 {
		return r, err
	}
	r.SetAside = SetAside{Tasks: len(list), Example: list[0].Error}
	return r, nil
}

// SetAsideTasks reads the set-aside tasks of a job, ordered by index.
func SetAsideTasks(ctx context.Context, store *etcdstore.Store) ([]taskqueue.AsideDetail, error) {
	values, _, err := store.ReadAll(ctx, taskqueue.AsidePrefix)
	if err != nil {
		return nil, fmt.Errorf("read set-aside tasks: %w", err)
	}
	tasks := make([]taskqueue.AsideDetail, 0, len(values))
	for key, value := range values {
		var d taskqueue.AsideDetail
		if err := json.Unmarshal(value, &d); err != nil {
			return nil, fmt.Errorf("%s: expected JSON, found %.80q: %w", key, value, err)
		}
		tasks = append(tasks, d)
	}
	slices.SortFunc(tasks, func(a, b taskqueue.AsideDetail) int { return a.Task - b.Task })
	return tasks, nil
}

// maxState bounds the decoded state of a job.
const maxState = 1 << 30

// readState reads the state of the job; it is empty before the first commit.
func readState(ctx context.Context, store *etcdstore.Store) (state taskqueue.Snapshot, err error) {
	stored, _, err := store.State(ctx)
	if err != nil || stored == nil {
		return state, err
	}
	if err := etcdstore.Decode(stored, &state, maxState); err != nil {
		return state, fmt.Errorf("read the state of the job: %w", err)
	}
	return state, nil
}
