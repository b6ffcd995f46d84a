package local

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"trainmaster/etcdstore"
	"trainmaster/taskqueue"
)

// SetAside says how many tasks the job went without, and why it was so with one of them.
type SetAside struct {
	Tasks   int    `json:"tasks"`
	Example string `json:"example,omitempty"` // the last error of one
}

// setAside reads what the masters left in etcd.
func (j *Job) setAside(ctx context.Context) (SetAside, error) {
	store, err := etcdstore.Open(ctx, etcdstore.Config{Endpoints: []string{j.endpoint}})
	if err != nil {
		return SetAside{}, err
	}
	defer store.Close()
	tasks, err := SetAsideTasks(ctx, store)
	if err != nil || len(tasks) == 0 {
		return SetAside{}, err
	}
	return SetAside{Tasks: len(tasks), Example: tasks[0].Error}, nil
}

// SetAsideTasks reads which tasks of a job are set aside, from the lowest index on.
func SetAsideTasks(ctx context.Context, store *etcdstore.Store) ([]taskqueue.AsideDetail, error) {
	values, _, err := store.Together(ctx, taskqueue.AsidePrefix)
	if err != nil {
		return nil, fmt.Errorf("read which tasks are set aside: %w", err)
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
