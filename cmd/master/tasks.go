package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	pb "trainmaster/proto/trainmaster/v1"
)

// taskEntry is one line of what `master tasks` says.
type taskEntry struct {
	Dataset  uint32       `json:"dataset"`
	Task     uint64       `json:"task"`
	State    string       `json:"state"` // pending, retry, set_aside
	Pass     uint32       `json:"pass"`
	Attempt  uint32       `json:"attempt"` // the last one; 0 when set aside
	Failures uint32       `json:"failures"`
	Losses   uint32       `json:"losses"`
	Holders  []taskHolder `json:"holders"`
	Holder   string       `json:"holder"` // who had a set-aside task last
	Error    string       `json:"error"`  // and what went wrong
	Dropped  bool         `json:"dropped"`
}

// taskStates are the words of --state, the first for all.
var taskStates = []string{"all", "pending", "retry", "set_aside"}

func tasksCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tasks",
		Short: "List tasks by state; retry or drop those that are set aside",
		Long: `Tasks lists the tasks of a job that stand somewhere by themselves: those that trainers have, those that wait to be
dispatched again, and those that failed too often and were set aside. A task that is not listed is to do or done.

What becomes of a set-aside task is your word: master tasks retry puts it back, master tasks drop gives it up.

With --of-record it asks no master: it finds the task that a record of a file is in, and says from the job's ledger which
trainers had it in each pass, when, and whose training was counted. Without --endpoints it reads the embedded etcd under
--data-dir, which no master may be using.`,
		Example: `  master tasks
  # what was set aside, and why
  master tasks --state set_aside -o json | jq '.[] | {task, error}'
  # who trained the first record of a file
  master tasks --of-record data/digits-00000-of-00004:0 --endpoints 127.0.0.1:2379`,
	}
	from, open := addLeaderFlags(cmd)
	format := addOutput(cmd)
	state := addChoice(cmd, "state", "", "only tasks in this state", taskStates...)
	ofRecord := cmd.Flags().String("of-record", "", "what became of record N, from 0, of a file: `FILE:N`")
	dir := addLedgerDir(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *ofRecord != "" {
			store, closeStore, err := from.open(cmd.Context())
			if err != nil {
				return err
			}
			defer closeStore()
			trace, err := traceRecord(cmd.Context(), store, from, *dir, *ofRecord)
			if err != nil {
				return err
			}
			return render(cmd.OutOrStdout(), *format, trace, trace.table)
		}
		l, err := open(cmd.Context())
		if err != nil {
			return err
		}
		defer l.hangUp()
		list, err := askTasks(cmd.Context(), l, *state)
		if err != nil {
			return err
		}
		return render(cmd.OutOrStdout(), *format, list, func(w io.Writer) { tasksTable(w, list, *state) })
	}
	cmd.AddCommand(tasksRetryCommand(), tasksDropCommand())
	return cmd
}

func askTasks(ctx context.Context, l *leader, state string) ([]taskEntry, error) {
	list := []taskEntry{}
	req := &pb.ListTasksRequest{Job: l.job}
	if state != taskStates[0] {
		req.States = []pb.TaskState{pb.TaskState(pb.TaskState_value["TASK_STATE_"+strings.ToUpper(state)])}
	}
	for {
		err := l.ask(ctx, func(ctx context.Context, o pb.OperatorClient) error {
			reply, err := o.ListTasks(ctx, req)
			for _, t := range reply.GetTasks() {
				list = append(list, newTaskEntry(t))
			}
			req.PageToken = reply.GetNextPageToken()
			return err
		})
		if err != nil || req.PageToken == "" {
			return list, err
		}
	}
}

func newTaskEntry(t *pb.TaskEntry) taskEntry {
	e := taskEntry{
		Dataset: t.GetDataset(), Task: t.GetIndex(), State: word(t.GetState(), "TASK_STATE_"), Pass: t.GetPass(), Attempt: t.GetAttempt(),
		Failures: t.GetFailures(), Losses: t.GetLosses(), Holders: []taskHolder{}, Holder: t.GetLastHolder(), Error: t.GetLastError(), Dropped: t.GetDropped(),
	}
	for _, h := range t.GetHolders() {
		e.Holders = append(e.Holders, taskHolder{Trainer: h.GetTrainer(), Attempt: h.GetAttempt(), Age: h.GetAgeSeconds(), Prefetched: h.GetPrefetched()})
	}
	return e
}

func tasksTable(w io.Writer, list []taskEntry, state string) {
	if len(list) == 0 {
		fmt.Fprintf(w, "No task is %s.\n", map[string]string{"all": "pending, to be retried or set aside", "pending": "pending", "retry": "to be retried", "set_aside": "set aside"}[state])
		return
	}
	fmt.Fprintln(w, "DATASET\tTASK\tSTATE\tPASS\tATTEMPT\tFAILURES\tLOSSES\tTRAINER\tERROR")
	for _, t := range list {
		state, attempt, who := t.State, fmt.Sprint(t.Attempt), t.Holder
		switch {
		case t.Dropped:
			state, attempt = "dropped", "-"
		case t.State == "set_aside":
			state, attempt = "set aside", "-"
		}
		var holders []string
		for _, h := range t.Holders {
			holders = append(holders, h.Trainer)
		}
		if len(holders) > 0 {
			who = strings.Join(holders, ",")
		}
		fmt.Fprintf(w, "%d\t%d\t%s\t%d\t%s\t%d\t%d\t%s\t%s\n", t.Dataset, t.Task, state, t.Pass, attempt, t.Failures, t.Losses, who,
			strings.Join(slices.Collect(strings.FieldsSeq(t.Error)), " "))
	}
}

// parseTask reads a task as a command line names it: its number, with that of its dataset in front if that is not 0.
func parseTask(text string) (dataset uint32, index uint64, err error) {
	of, number, found := strings.Cut(text, "/")
	if !found {
		of, number = "0", text
	}
	d, err := strconv.ParseUint(of, 10, 32)
	if err == nil {
		index, err = strconv.ParseUint(number, 10, 63)
	}
	if err != nil {
		return 0, 0, usageErrorf("task %q: expected its number, as master tasks lists it, or DATASET/NUMBER", text)
	}
	return uint32(d), index, nil
}

func tasksRetryCommand() *cobra.Command {
	var all bool
	cmd := steerCommand(&cobra.Command{
		Use:   "retry TASK|--all",
		Short: "Put set-aside tasks back",
		Long: `Retry puts a task back that was set aside, once the cause is mended: it is dispatched again in this pass. A job that was paused
for too many set-aside tasks goes on when there are few enough; one that an operator paused waits for master resume.`,
		Example: `  master tasks retry 17
  master tasks retry --all`,
		Args: cobra.MaximumNArgs(1),
	}, func(ctx context.Context, o pb.OperatorClient, job string, args []string) (string, error) {
		req := &pb.RetryTaskRequest{Job: job}
		switch {
		case all == (len(args) == 1):
			return "", usageErrorf("expected either the number of a task or --all; master tasks --state set_aside lists them")
		case all:
			req.Which = &pb.RetryTaskRequest_All{All: true}
		default:
			dataset, index, err := parseTask(args[0])
			if err != nil {
				return "", err
			}
			req.Dataset, req.Which = dataset, &pb.RetryTaskRequest_Index{Index: index}
		}
		reply, err := o.RetryTask(ctx, req)
		return fmt.Sprintf("tasks put back: %d", reply.GetRetried()), err
	})
	cmd.Flags().BoolVar(&all, "all", false, "all of dataset 0 that are set aside and not dropped")
	return cmd
}

func tasksDropCommand() *cobra.Command {
	return steerCommand(&cobra.Command{
		Use:   "drop TASK",
		Short: "Give a set-aside task up for ever",
		Long: `Drop gives a task up that was set aside: no pass of the job trains it again, and no retry brings it back. Reports go on to count
it as set aside, and master verify says how many of those were dropped.`,
		Example: `  master tasks drop 17`,
		Args:    cobra.ExactArgs(1),
	}, func(ctx context.Context, o pb.OperatorClient, job string, args []string) (string, error) {
		dataset, index, err := parseTask(args[0])
		if err != nil {
			return "", err
		}
		_, err = o.DropTask(ctx, &pb.DropTaskRequest{Job: job, Dataset: dataset, Index: index})
		return fmt.Sprintf("task %s is dropped: it stays set aside for ever", args[0]), err
	})
}
