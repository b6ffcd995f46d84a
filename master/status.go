package master

import (
	"context"
	"encoding/json"
	"fmt"

	"trainmaster/ledger"
	"trainmaster/master/pscontrol"
	"trainmaster/taskqueue"
)

// Status is the state of the job and its leader.
type Status struct {
	taskqueue.Overview
	Leader  string         // address for trainers
	Term    uint64         // create revision of the leader's lock
	Commits int64          // of this term
	Refused int64          // commits of this term that the store did not take
	Refusal string         // why it did not take the last commit; "": it did
	Ledger  *ledger.Status // nil: this master writes no ledger

	Checkpoint *pscontrol.CheckpointStatus // nil: this master takes none

	Registration Registration // of a dataset; zero when there is none under way
}

// Status sums the job up.
func (m *Master) Status(ctx context.Context) (Status, error) {
	t, err := m.leading()
	if err != nil {
		if reason, _ := m.notLeading.Load().(string); reason != "" {
			err = fmt.Errorf("%w: %s", err, reason)
		}
		return Status{}, err
	}
	s := Status{Leader: m.config.Advertise, Term: uint64(t.Number()), Registration: m.reports.now.status(), Checkpoint: m.config.Servers.Checkpoint()}
	if m.config.seals() {
		status := m.config.Ledger.Status()
		s.Ledger = &status
	}
	err = t.Read(ctx, func(q *taskqueue.Queue) {
		counts := t.Counts()
		s.Overview, s.Commits, s.Refused, s.Refusal = q.Overview(), counts.Commits, counts.Refused, counts.Refusal
	})
	if err != nil {
		return Status{}, err // look may still be writing s
	}
	return s, nil
}

// Servers returns the status of the parameter servers.
func (m *Master) Servers(ctx context.Context) (pscontrol.Status, error) {
	if _, err := m.leading(); err != nil {
		return pscontrol.Status{}, err
	}
	return m.config.Servers.Status(ctx), nil
}

// Tasks lists the tasks with a state of their own. All other tasks are todo or done.
type Tasks struct {
	Live     []taskqueue.PendingTask // by dataset, pass and position; one without holders is to be dispatched again
	SetAside []SetAsideTask          // by dataset and index
}

// SetAsideTask names a task that is set aside. Why it is, AsideDetail says.
type SetAsideTask struct {
	Set, Index int
	Dropped    bool
}

// Tasks lists the dispatched tasks, those to be dispatched again, and those set aside.
func (m *Master) Tasks(ctx context.Context) (Tasks, error) {
	var tasks Tasks
	err := m.inspect(ctx, func(q *taskqueue.Queue) {
		tasks.Live = q.PendingTasks()
		for set := 0; q.Table(set) != nil; set++ {
			for _, index := range q.SetAsideTasks(set) {
				tasks.SetAside = append(tasks.SetAside, SetAsideTask{set, index, q.Dropped(set, index)})
			}
		}
	})
	if err != nil {
		return Tasks{}, err
	}
	return tasks, nil
}

// AsideDetail reads why a task is set aside; found is false when it no longer is.
func (m *Master) AsideDetail(ctx context.Context, task SetAsideTask) (detail taskqueue.AsideDetail, found bool, err error) {
	key := taskqueue.AsideKey(task.Set, task.Index)
	value, _, err := m.config.Store.Value(ctx, key)
	if err != nil || value == nil {
		return detail, false, err
	}
	if err := json.Unmarshal(value, &detail); err != nil {
		return detail, false, fmt.Errorf("%w: %s: expected JSON, found %.80q: %w", taskqueue.ErrDamaged, key, value, err)
	}
	return detail, true, nil
}

// TaskQueues builds the literal queues of a dataset, which costs O(tasks).
func (m *Master) TaskQueues(ctx context.Context, set int) (view taskqueue.TaskQueues, err error) {
	known := false
	err = m.inspect(ctx, func(q *taskqueue.Queue) {
		if known = q.Table(set) != nil; known {
			view = q.TaskQueues(set)
		}
	})
	if err == nil && !known {
		err = fmt.Errorf("dataset %d was not reported", set)
	}
	return view, err
}
