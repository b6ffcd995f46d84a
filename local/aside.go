package local

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
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
	details, _, err := store.Together(ctx, taskqueue.AsidePrefix)
	if err != nil {
		return SetAside{}, fmt.Errorf("read which tasks are set aside: %w", err)
	}
	if len(details) == 0 {
		return SetAside{}, nil
	}
	first := slices.Min(slices.Collect(maps.Keys(details)))
	var d taskqueue.AsideDetail
	if err := json.Unmarshal(details[first], &d); err != nil {
		return SetAside{}, fmt.Errorf("%s: expected JSON, found %.80q: %w", first, details[first], err)
	}
	return SetAside{Tasks: len(details), Example: d.Error}, nil
}
