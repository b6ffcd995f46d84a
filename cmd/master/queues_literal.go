package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"trainmaster/etcdstore"
	"trainmaster/taskqueue"
)

// literalQueues is what `master queues --literal` says: the lists as they would be if they were stored as lists.
type literalQueues struct {
	Job      string            `json:"job"`
	Status   string            `json:"status"`
	Reason   string            `json:"reason"`
	Epoch    uint32            `json:"epoch"`
	Commit   uint64            `json:"commit"`
	Datasets []literalDatasets `json:"datasets"`
}

// literalDatasets has the tasks of the oldest open pass, each in one of the lists.
type literalDatasets struct {
	Dataset  int            `json:"dataset"`
	Pass     taskqueue.Pass `json:"pass"`
	Cursor   int            `json:"cursor"`
	Todo     []literalEntry `json:"todo"`    // in the order of the pass; those with an attempt are to be retried
	Pending  []literalEntry `json:"pending"` // by task
	Done     []literalEntry `json:"done"`    // in the order of the pass
	SetAside []setAsideTask `json:"set_aside"`
}

type literalEntry struct {
	Task       int            `json:"task"`
	NumTimeout int            `json:"num_timeout"` // failures in this pass
	Token      string         `json:"token"`       // epoch/dataset/pass/position.attempt
	Chunks     []literalChunk `json:"chunks"`
}

type literalChunk struct {
	Path        string `json:"path"`
	Chunk       int    `json:"chunk"` // its number in the file, from 0
	Offset      int64  `json:"offset"`
	Size        uint32 `json:"size"`
	Records     uint32 `json:"records"`
	Compression string `json:"compression"`
	Layout      string `json:"layout"`
}

// readLiteral decodes the state in etcd at one revision. It needs no master.
func readLiteral(ctx context.Context, store *etcdstore.Store, from place) (literalQueues, error) {
	queue, values, err := readQueue(ctx, store, from)
	if err != nil {
		return literalQueues{}, err
	}
	v := queue.Overview()
	q := literalQueues{Job: v.Job, Status: v.Status.String(), Reason: v.Reason, Epoch: v.Epoch, Commit: v.Commit, Datasets: []literalDatasets{}}
	for i, s := range v.Sets {
		view := queue.TaskQueues(i)
		d := literalDatasets{
			Dataset: i, Pass: s.Pass, Cursor: s.Cursor, Todo: literalEntries(view.Todo), Done: literalEntries(view.Done), SetAside: []setAsideTask{},
		}
		pending := make([]taskqueue.TaskEntry, 0, len(view.Pending))
		for _, task := range slices.Sorted(maps.Keys(view.Pending)) {
			pending = append(pending, view.Pending[task])
		}
		d.Pending = literalEntries(pending)
		for _, task := range queue.SetAsideTasks(i) {
			detail := taskqueue.AsideDetail{Task: task}
			if value := values[taskqueue.AsideKey(i, task)]; value != nil {
				if err := json.Unmarshal(value, &detail); err != nil {
					return literalQueues{}, fmt.Errorf("%s: expected JSON, found %.80q: %w", taskqueue.AsideKey(i, task), value, err)
				}
			}
			d.SetAside = append(d.SetAside, setAsideTask{
				uint64(task), uint32(detail.Pass), uint32(detail.Failures), uint32(detail.Losses), detail.Holder, detail.Error, queue.Dropped(i, task),
			})
		}
		q.Datasets = append(q.Datasets, d)
	}
	return q, nil
}

func literalEntries(entries []taskqueue.TaskEntry) []literalEntry {
	list := make([]literalEntry, 0, len(entries))
	for _, e := range entries {
		entry := literalEntry{Task: e.Task.Index, NumTimeout: e.NumTimeout, Token: e.Task.Token.String(), Chunks: make([]literalChunk, 0, len(e.Task.Chunks))}
		for _, c := range e.Task.Chunks {
			x := c.Index
			entry.Chunks = append(entry.Chunks, literalChunk{c.Path, c.Idx, x.Offset, x.Size, x.Records, x.Compression.String(), x.Layout.String()})
		}
		list = append(list, entry)
	}
	return list
}

func (q literalQueues) over() bool { return q.Status == "ended" || q.Status == "failed" }

func (q literalQueues) table(w io.Writer, limit int) {
	fmt.Fprintf(w, "job %s, commit %s\n", withReason(q.Job+", "+q.Status, q.Reason), thousands(q.Commit))
	if len(q.Datasets) == 0 {
		fmt.Fprintln(w, "No dataset was reported yet.")
	}
	for _, d := range q.Datasets {
		fmt.Fprintf(w, "\ndataset %d, pass %d, cursor %s\n", d.Dataset, d.Pass, thousands(uint64(d.Cursor)))
		for _, list := range []struct {
			name    string
			entries []literalEntry
		}{{"todo", d.Todo}, {"pending", d.Pending}, {"done", d.Done}} {
			var tasks []int
			for _, e := range list.entries {
				tasks = append(tasks, e.Task)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\n", list.name, thousands(uint64(len(tasks))), first(tasks, limit))
		}
		var aside []int
		var dropped uint64
		for _, t := range d.SetAside {
			aside = append(aside, int(t.Task))
			if t.Dropped {
				dropped++
			}
		}
		fmt.Fprintf(w, "set aside\t%s\t%s\n", ofWhichDropped(uint64(len(aside)), dropped), first(aside, limit))
		if len(d.SetAside) > 0 {
			fmt.Fprint(w, setAsideHead)
		}
		some(w, d.SetAside, limit, "set aside", setAsideTask.row)
	}
}

// first writes the first of a list of tasks in a line.
func first(tasks []int, limit int) string {
	more := ""
	if limit > 0 && len(tasks) > limit {
		tasks, more = tasks[:limit], " ..."
	}
	return strings.Trim(fmt.Sprint(tasks), "[]") + more
}
