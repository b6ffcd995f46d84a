package local

import (
	"context"
	"encoding/json"
	"fmt"

	"trainmaster/etcdstore"
	"trainmaster/taskqueue"
)

// SetAside says how many tasks the job went without, and why it was so with one of them.
type SetAside struct {
	Tasks   int    `json:"tasks"`
	Example string `json:"example,omitempty"` // the last error of one
}

const asidePrefix = "/task_queues/aside/"

// setAside reads what the masters left in etcd.
func (j *Job) setAside(ctx context.Context) (SetAside, error) {
	store, err := etcdstore.Open(ctx, etcdstore.Config{Endpoints: []string{j.endpoint}})
	if err != nil {
		return SetAside{}, err
	}
	defer store.Close()
	details, _, err := store.Together(ctx, asidePrefix)
	if err != nil {
		return SetAside{}, fmt.Errorf("read which tasks are set aside: %w", err)
	}
	result := SetAside{Tasks: len(details)}
	for key, value := range details {
		var d taskqueue.AsideDetail
		if err := json.Unmarshal(value, &d); err != nil {
			return SetAside{}, fmt.Errorf("%s: expected JSON, found %.80q: %w", key, value, err)
		}
		result.Example = d.Error
	}
	return result, nil
}
