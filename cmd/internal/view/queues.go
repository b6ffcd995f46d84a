package view

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"trainmaster/cmd/internal/cli"
	pb "trainmaster/proto/trainmaster/v1"
)

// Queues is what `master queues` says.
type Queues struct {
	Steps    *jobSteps       `json:"steps,omitempty"` // of explicit commits
	Job      string          `json:"job"`
	Status   string          `json:"status"`
	Reason   string          `json:"reason"`
	Epoch    uint32          `json:"epoch"`
	Commit   uint64          `json:"commit"`
	Datasets []datasetQueues `json:"datasets"`
}

// datasetQueues has the counts of the oldest open pass, and the tasks of all open passes that are listed by name.
type datasetQueues struct {
	Dataset  uint32         `json:"dataset"`
	Pass     uint32         `json:"pass"`
	Passes   uint32         `json:"passes"`
	Cursor   uint64         `json:"cursor"`
	Counts   TaskCounts     `json:"counts"`
	Pending  []liveTask     `json:"pending"`
	Retry    []liveTask     `json:"retry"`
	SetAside []SetAsideTask `json:"set_aside"`
}

// TaskCounts has the number of tasks in each state.
type TaskCounts struct {
	Tasks       uint64 `json:"tasks"`
	Todo        uint64 `json:"todo"`
	Pending     uint64 `json:"pending"`
	Retry       uint64 `json:"retry"`
	Done        uint64 `json:"done"`
	SetAside    uint64 `json:"set_aside"`
	Uncommitted uint64 `json:"uncommitted,omitempty"` // finished, and in no committed step
	Dropped     uint64 `json:"dropped"`               // part of SetAside: no retry returns these tasks
}

// liveTask is dispatched or to be dispatched again.
type liveTask struct {
	Task     uint64       `json:"task"`
	Pass     uint32       `json:"pass"`
	Position uint64       `json:"position"`
	Attempt  uint32       `json:"attempt"` // the last attempt
	Failures uint32       `json:"failures"`
	Losses   uint32       `json:"losses"`
	Holders  []taskHolder `json:"holders"`
}

type taskHolder struct {
	Trainer    string  `json:"trainer"`
	Attempt    uint32  `json:"attempt"`
	Age        float64 `json:"age_s"`
	Prefetched bool    `json:"prefetched"`
}

// SetAsideTask is a task that failed too often.
type SetAsideTask struct {
	Task     uint64 `json:"task"`
	Pass     uint32 `json:"pass"`
	Failures uint32 `json:"failures"`
	Losses   uint32 `json:"losses"`
	Holder   string `json:"holder"`
	Error    string `json:"error"`
	Dropped  bool   `json:"dropped"`
}

// NewQueues returns the queues of a job with the counts of its status, and empty lists.
func NewQueues(s Status) Queues {
	q := Queues{Steps: s.Steps, Job: s.Job, Status: s.Status, Reason: s.Reason, Epoch: s.Epoch, Commit: s.Commit, Datasets: []datasetQueues{}}
	for _, d := range s.Datasets {
		q.Datasets = append(q.Datasets, datasetQueues{
			Dataset: d.Dataset, Pass: d.Pass, Passes: d.Passes, Cursor: d.Cursor,
			Counts:  TaskCounts{Tasks: d.Tasks, Todo: d.Todo, Pending: d.Pending, Retry: d.Retry, Done: d.Done, SetAside: d.SetAside, Uncommitted: d.Uncommitted},
			Pending: []liveTask{}, Retry: []liveTask{}, SetAside: []SetAsideTask{},
		})
	}
	return q
}

// Add puts a task of the leader into its list.
func (q *Queues) Add(t *pb.TaskEntry) {
	if int(t.GetDataset()) >= len(q.Datasets) {
		return // reported since
	}
	d := &q.Datasets[t.GetDataset()]
	if t.GetState() == pb.TaskState_TASK_STATE_SET_ASIDE {
		d.SetAside = append(d.SetAside, SetAsideTask{t.GetIndex(), t.GetPass(), t.GetFailures(), t.GetLosses(), t.GetLastHolder(), t.GetLastError(), t.GetDropped()})
		if t.GetDropped() {
			d.Counts.Dropped++
		}
		return
	}
	task := liveTask{
		Task: t.GetIndex(), Pass: t.GetPass(), Position: t.GetPosition(), Attempt: t.GetAttempt(),
		Failures: t.GetFailures(), Losses: t.GetLosses(), Holders: []taskHolder{},
	}
	for _, h := range t.GetHolders() {
		task.Holders = append(task.Holders, taskHolder{h.GetTrainer(), h.GetAttempt(), h.GetAgeSeconds(), h.GetPrefetched()})
	}
	if len(task.Holders) == 0 {
		d.Retry = append(d.Retry, task)
		return
	}
	d.Pending = append(d.Pending, task)
}

// Ended reports whether the job has ended or failed.
func (q Queues) Ended() bool { return q.Status == "ended" || q.Status == "failed" }

// Table writes the counts of each dataset, and at most limit tasks of each list (0 = all).
func (q Queues) Table(w io.Writer, limit int) {
	fmt.Fprintf(w, "job %s, commit %s\n", WithReason(q.Job+", "+q.Status, q.Reason), cli.Thousands(q.Commit))
	q.Steps.table(w)
	if len(q.Datasets) == 0 {
		fmt.Fprintln(w, "No dataset yet: a job with tasks begins when a trainer reports its dataset.")
	}
	for _, d := range q.Datasets {
		c := d.Counts
		fmt.Fprintf(w, "\nDATASET\tPASS\tCURSOR\tTODO\tPENDING\tRETRY\tDONE\tSET ASIDE\tTASKS\n")
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", d.Dataset, ofPasses(d.Pass, d.Passes), cli.Thousands(d.Cursor),
			cli.Thousands(c.Todo), cli.Thousands(c.Pending), cli.Thousands(c.Retry), cli.Thousands(c.Done), ofWhichDropped(c.SetAside, c.Dropped), cli.Thousands(c.Tasks))
		if len(d.Pending)+len(d.Retry) > 0 {
			fmt.Fprintf(w, "\nSTATE\tTASK\tPASS\tPOSITION\tATTEMPT\tFAILURES\tLOSSES\tHOLDER\tAGE\n")
		}
		firstRows(w, d.Pending, limit, "pending", liveTask.rows)
		firstRows(w, d.Retry, limit, "to be retried", liveTask.rows)
		if len(d.SetAside) > 0 {
			fmt.Fprint(w, setAsideHead)
		}
		firstRows(w, d.SetAside, limit, "set aside", SetAsideTask.row)
	}
}

// firstRows writes the first entries of a list, and the number of further entries.
func firstRows[T any](w io.Writer, list []T, limit int, what string, row func(T, io.Writer)) {
	shown := list
	if limit > 0 && len(list) > limit {
		shown = list[:limit]
	}
	for _, t := range shown {
		row(t, w)
	}
	if more := len(list) - len(shown); more > 0 {
		fmt.Fprintf(w, "... and %s more %s (--limit 0 shows all)\n", cli.Thousands(uint64(more)), what)
	}
}

// rows writes one line for each holder. The first line also has the values of the task.
func (t liveTask) rows(w io.Writer) {
	head := fmt.Sprintf("%d\t%d\t%d\t%d\t%d\t%d", t.Task, t.Pass, t.Position, t.Attempt, t.Failures, t.Losses)
	if len(t.Holders) == 0 {
		fmt.Fprintf(w, "retry\t%s\t-\t-\n", head)
	}
	for i, h := range t.Holders {
		age := cli.Span(h.Age)
		if h.Prefetched {
			age = "prefetched"
		}
		if i == 0 {
			fmt.Fprintf(w, "pending\t%s\t%s\t%s\n", head, h.Trainer, age)
		} else {
			fmt.Fprintf(w, "\t%s%s\t%s\n", strings.Repeat("\t", 6), h.Trainer, age)
		}
	}
}

// ofWhichDropped formats the number of set-aside tasks, and of the dropped tasks among them.
func ofWhichDropped(aside, dropped uint64) string {
	if dropped == 0 {
		return cli.Thousands(aside)
	}
	return fmt.Sprintf("%s (%s dropped)", cli.Thousands(aside), cli.Thousands(dropped))
}

const setAsideHead = "\nSET ASIDE\tPASS\tFAILURES\tLOSSES\tLAST HOLDER\tLAST ERROR\n"

func (t SetAsideTask) row(w io.Writer) {
	task := fmt.Sprint(t.Task)
	if t.Dropped {
		task += ", dropped"
	}
	fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\t%s\n", task, t.Pass, t.Failures, t.Losses, t.Holder, strings.Join(slices.Collect(strings.FieldsSeq(t.Error)), " "))
}
