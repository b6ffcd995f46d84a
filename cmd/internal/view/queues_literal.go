package view

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"trainmaster/cmd/internal/cli"
	"trainmaster/taskqueue"
)

// LiteralQueues is what `master queues --literal` says: the lists as they would be if they were stored as lists.
type LiteralQueues struct {
	Job      string           `json:"job"`
	Status   string           `json:"status"`
	Reason   string           `json:"reason"`
	Epoch    uint32           `json:"epoch"`
	Commit   uint64           `json:"commit"`
	Datasets []LiteralDataset `json:"datasets"`
}

// LiteralDataset has the tasks of the oldest open pass, each in one of the lists.
type LiteralDataset struct {
	Dataset  int            `json:"dataset"`
	Pass     taskqueue.Pass `json:"pass"`
	Cursor   int            `json:"cursor"`
	Todo     []LiteralEntry `json:"todo"`    // in the order of the pass; those with an attempt are to be retried
	Pending  []LiteralEntry `json:"pending"` // by task
	Done     []LiteralEntry `json:"done"`    // in the order of the pass
	SetAside []SetAsideTask `json:"set_aside"`
}

// LiteralEntry is a task with its token and chunks.
type LiteralEntry struct {
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

// NewLiteralQueues returns the lists of a queue. values has the stored details of its set-aside tasks.
func NewLiteralQueues(queue *taskqueue.Queue, values map[string][]byte) (LiteralQueues, error) {
	v := queue.Overview()
	q := LiteralQueues{Job: v.Job, Status: v.Status.String(), Reason: v.Reason, Epoch: v.Epoch, Commit: v.Commit, Datasets: []LiteralDataset{}}
	for i, s := range v.Sets {
		view := queue.TaskQueues(i)
		d := LiteralDataset{
			Dataset: i, Pass: s.Pass, Cursor: s.Cursor, Todo: LiteralEntries(view.Todo), Done: LiteralEntries(view.Done), SetAside: []SetAsideTask{},
		}
		pending := make([]taskqueue.TaskEntry, 0, len(view.Pending))
		for _, task := range slices.Sorted(maps.Keys(view.Pending)) {
			pending = append(pending, view.Pending[task])
		}
		d.Pending = LiteralEntries(pending)
		for _, task := range queue.SetAsideTasks(i) {
			detail := taskqueue.AsideDetail{Task: task}
			if value := values[taskqueue.AsideKey(i, task)]; value != nil {
				if err := json.Unmarshal(value, &detail); err != nil {
					return LiteralQueues{}, fmt.Errorf("%s: expected JSON, found %.80q: %w", taskqueue.AsideKey(i, task), value, err)
				}
			}
			d.SetAside = append(d.SetAside, SetAsideTask{
				uint64(task), uint32(detail.Pass), uint32(detail.Failures), uint32(detail.Losses), detail.Holder, detail.Error, queue.Dropped(i, task),
			})
		}
		q.Datasets = append(q.Datasets, d)
	}
	return q, nil
}

// LiteralEntries returns the entries of a list.
func LiteralEntries(entries []taskqueue.TaskEntry) []LiteralEntry {
	list := make([]LiteralEntry, 0, len(entries))
	for _, e := range entries {
		entry := LiteralEntry{Task: e.Task.Index, NumTimeout: e.NumTimeout, Token: e.Task.Token.String(), Chunks: make([]literalChunk, 0, len(e.Task.Chunks))}
		for _, c := range e.Task.Chunks {
			x := c.Index
			entry.Chunks = append(entry.Chunks, literalChunk{c.Path, c.Idx, x.Offset, x.Size, x.Records, x.Compression.String(), x.Layout.String()})
		}
		list = append(list, entry)
	}
	return list
}

// Ended reports whether the job has ended or failed.
func (q LiteralQueues) Ended() bool { return q.Status == "ended" || q.Status == "failed" }

// Table writes the lists of each dataset, each with at most limit tasks (0 = all).
func (q LiteralQueues) Table(w io.Writer, limit int) {
	fmt.Fprintf(w, "job %s, commit %s\n", WithReason(q.Job+", "+q.Status, q.Reason), cli.Thousands(q.Commit))
	if len(q.Datasets) == 0 {
		fmt.Fprintln(w, "No dataset was reported yet.")
	}
	for _, d := range q.Datasets {
		fmt.Fprintf(w, "\ndataset %d, pass %d, cursor %s\n", d.Dataset, d.Pass, cli.Thousands(uint64(d.Cursor)))
		for _, list := range []struct {
			name    string
			entries []LiteralEntry
		}{{"todo", d.Todo}, {"pending", d.Pending}, {"done", d.Done}} {
			var tasks []int
			for _, e := range list.entries {
				tasks = append(tasks, e.Task)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\n", list.name, cli.Thousands(uint64(len(tasks))), firstTasks(tasks, limit))
		}
		var aside []int
		var dropped uint64
		for _, t := range d.SetAside {
			aside = append(aside, int(t.Task))
			if t.Dropped {
				dropped++
			}
		}
		fmt.Fprintf(w, "set aside\t%s\t%s\n", ofWhichDropped(uint64(len(aside)), dropped), firstTasks(aside, limit))
		if len(d.SetAside) > 0 {
			fmt.Fprint(w, setAsideHead)
		}
		firstRows(w, d.SetAside, limit, "set aside", SetAsideTask.row)
	}
}

// firstTasks writes the first of a list of tasks in a line.
func firstTasks(tasks []int, limit int) string {
	more := ""
	if limit > 0 && len(tasks) > limit {
		tasks, more = tasks[:limit], " ..."
	}
	return strings.Trim(fmt.Sprint(tasks), "[]") + more
}
