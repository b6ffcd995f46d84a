package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	pb "trainmaster/proto/trainmaster/v1"
)

// jobQueues is what `master queues` says.
type jobQueues struct {
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
	Counts   taskCounts     `json:"counts"`
	Pending  []liveTask     `json:"pending"`
	Retry    []liveTask     `json:"retry"`
	SetAside []setAsideTask `json:"set_aside"`
}

type taskCounts struct {
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

type setAsideTask struct {
	Task     uint64 `json:"task"`
	Pass     uint32 `json:"pass"`
	Failures uint32 `json:"failures"`
	Losses   uint32 `json:"losses"`
	Holder   string `json:"holder"`
	Error    string `json:"error"`
	Dropped  bool   `json:"dropped"`
}

func queuesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "queues",
		Short: "List the tasks that are dispatched, to be retried or set aside",
		Long: `Queues asks the master that leads a job where its tasks are: how many of each dataset are to do and done, which ones are
dispatched and to whom, which ones wait to be dispatched again, and which ones were set aside and why.

With --literal it asks no master: it decodes the state straight from etcd and lists every task of the pass as to do,
pending or done. Without --endpoints that is the embedded etcd under --data-dir, which no master may be using.`,
		Example: `  master queues
  master queues --endpoints 10.0.0.1:2379 --job digits --watch
  # what went wrong with the tasks that were set aside
  master queues -o json | jq '.datasets[].set_aside[] | {task, error}'
  # every task of a job that no master leads
  master queues --literal --data-dir trainmaster-data -o json`,
	}
	from, open := addLeaderFlags(cmd)
	v := addWatch(cmd)
	limit := cmd.Flags().Int("limit", 20, "at most so many `tasks` of each list in a table (0: all)")
	literal := cmd.Flags().Bool("literal", false, "decode the state in etcd, with no master")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx := cmd.Context()
		if *limit < 0 {
			return settingErrorf(cmd, "limit", "expected 0 (all) or more")
		}
		if *literal {
			store, closeStore, err := from.open(ctx)
			if err != nil {
				return err
			}
			defer closeStore()
			return v.show(cmd, func() (any, func(io.Writer), bool, error) {
				q, err := readLiteral(ctx, store, from)
				return q, func(w io.Writer) { q.table(w, *limit) }, q.over(), err
			})
		}
		l, err := open(ctx)
		if err != nil {
			return err
		}
		defer l.hangUp()
		return v.show(cmd, func() (any, func(io.Writer), bool, error) {
			q, err := askQueues(ctx, l)
			return q, func(w io.Writer) { q.table(w, *limit) }, q.over() || err != nil && l.over(ctx), err
		})
	}
	return cmd
}

// askQueues requests the counts, then the lists. The job continues between two requests.
func askQueues(ctx context.Context, l *leader) (jobQueues, error) {
	s, err := askStatus(ctx, l)
	if err != nil {
		return jobQueues{}, err
	}
	q := jobQueues{Steps: s.Steps, Job: s.Job, Status: s.Status, Reason: s.Reason, Epoch: s.Epoch, Commit: s.Commit, Datasets: []datasetQueues{}}
	for _, d := range s.Datasets {
		q.Datasets = append(q.Datasets, datasetQueues{
			Dataset: d.Dataset, Pass: d.Pass, Passes: d.Passes, Cursor: d.Cursor,
			Counts:  taskCounts{Tasks: d.Tasks, Todo: d.Todo, Pending: d.Pending, Retry: d.Retry, Done: d.Done, SetAside: d.SetAside, Uncommitted: d.Uncommitted},
			Pending: []liveTask{}, Retry: []liveTask{}, SetAside: []setAsideTask{},
		})
	}
	for req := (&pb.ListTasksRequest{Job: l.job}); ; {
		err := l.ask(ctx, func(ctx context.Context, o pb.OperatorClient) error {
			reply, err := o.ListTasks(ctx, req)
			for _, t := range reply.GetTasks() {
				q.add(t)
			}
			req.PageToken = reply.GetNextPageToken()
			return err
		})
		if err != nil || req.PageToken == "" {
			return q, err
		}
	}
}

func (q *jobQueues) add(t *pb.TaskEntry) {
	if int(t.GetDataset()) >= len(q.Datasets) {
		return // reported since
	}
	d := &q.Datasets[t.GetDataset()]
	if t.GetState() == pb.TaskState_TASK_STATE_SET_ASIDE {
		d.SetAside = append(d.SetAside, setAsideTask{t.GetIndex(), t.GetPass(), t.GetFailures(), t.GetLosses(), t.GetLastHolder(), t.GetLastError(), t.GetDropped()})
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

func (q jobQueues) over() bool { return q.Status == "ended" || q.Status == "failed" }

func (q jobQueues) table(w io.Writer, limit int) {
	fmt.Fprintf(w, "job %s, commit %s\n", withReason(q.Job+", "+q.Status, q.Reason), thousands(q.Commit))
	q.Steps.table(w)
	if len(q.Datasets) == 0 {
		fmt.Fprintln(w, "No dataset yet: the first trainer that reports one begins the job.")
	}
	for _, d := range q.Datasets {
		c := d.Counts
		fmt.Fprintf(w, "\nDATASET\tPASS\tCURSOR\tTODO\tPENDING\tRETRY\tDONE\tSET ASIDE\tTASKS\n")
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", d.Dataset, ofPasses(d.Pass, d.Passes), thousands(d.Cursor),
			thousands(c.Todo), thousands(c.Pending), thousands(c.Retry), thousands(c.Done), ofWhichDropped(c.SetAside, c.Dropped), thousands(c.Tasks))
		if len(d.Pending)+len(d.Retry) > 0 {
			fmt.Fprintf(w, "\nSTATE\tTASK\tPASS\tPOSITION\tATTEMPT\tFAILURES\tLOSSES\tHOLDER\tAGE\n")
		}
		some(w, d.Pending, limit, "pending", liveTask.rows)
		some(w, d.Retry, limit, "to be retried", liveTask.rows)
		if len(d.SetAside) > 0 {
			fmt.Fprint(w, setAsideHead)
		}
		some(w, d.SetAside, limit, "set aside", setAsideTask.row)
	}
}

// some writes the first entries of a list, and the number of further entries.
func some[T any](w io.Writer, list []T, limit int, what string, row func(T, io.Writer)) {
	shown := list
	if limit > 0 && len(list) > limit {
		shown = list[:limit]
	}
	for _, t := range shown {
		row(t, w)
	}
	if more := len(list) - len(shown); more > 0 {
		fmt.Fprintf(w, "... and %s more %s (--limit 0 shows all)\n", thousands(uint64(more)), what)
	}
}

// rows writes one line for each holder. The first line also has the values of the task.
func (t liveTask) rows(w io.Writer) {
	head := fmt.Sprintf("%d\t%d\t%d\t%d\t%d\t%d", t.Task, t.Pass, t.Position, t.Attempt, t.Failures, t.Losses)
	if len(t.Holders) == 0 {
		fmt.Fprintf(w, "retry\t%s\t-\t-\n", head)
	}
	for i, h := range t.Holders {
		age := span(h.Age)
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
		return thousands(aside)
	}
	return fmt.Sprintf("%s (%s dropped)", thousands(aside), thousands(dropped))
}

const setAsideHead = "\nSET ASIDE\tPASS\tFAILURES\tLOSSES\tLAST HOLDER\tLAST ERROR\n"

func (t setAsideTask) row(w io.Writer) {
	task := fmt.Sprint(t.Task)
	if t.Dropped {
		task += ", dropped"
	}
	fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\t%s\n", task, t.Pass, t.Failures, t.Losses, t.Holder, strings.Join(slices.Collect(strings.FieldsSeq(t.Error)), " "))
}
