package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/admin"
	"trainmaster/cmd/internal/cli"
	"trainmaster/cmd/internal/view"
	pb "trainmaster/proto/trainmaster/v1"
)

func tasksCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tasks",
		Short: "List tasks by state; retry or drop set-aside tasks",
		Long: `Tasks lists the tasks of a job that are pending at a trainer, that wait to be dispatched again, or that failed too often and
were set aside. All other tasks are to do or done.

For a set-aside task, use master tasks retry to dispatch it again, or master tasks drop to exclude it permanently.

With --of-record it finds the task of a record in a file. It reports from the job's ledger the trainers and times of each
dispatch in each pass, and the trainer whose result was counted. It needs no master. Without --endpoints it reads the embedded etcd under
--data-dir, which no master may be using.`,
		Example: `  master tasks
  # the set-aside tasks and their errors
  master tasks --state set_aside -o json | jq '.[] | {task, error}'
  # the trainers of the first record of a file
  master tasks --of-record data/digits-00000-of-00004:0 --endpoints 127.0.0.1:2379`,
	}
	from, open := admin.AddLeaderFlags(cmd)
	format := cli.AddOutput(cmd)
	state := cli.AddChoice(cmd, "state", "", "only tasks in this state", view.TaskStates...)
	ofRecord := cmd.Flags().String("of-record", "", "show the dispatches of record N of a file, counted from 0: `FILE:N`")
	dir := addLedgerDir(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *ofRecord != "" {
			store, closeStore, err := from.Open(cmd.Context())
			if err != nil {
				return err
			}
			defer closeStore()
			trace, err := admin.TraceRecord(cmd.Context(), store, from, *dir, *ofRecord)
			if err != nil {
				return err
			}
			return cli.Render(cmd.OutOrStdout(), *format, trace, func(w io.Writer) { view.RecordTable(w, trace) })
		}
		l, err := open(cmd.Context())
		if err != nil {
			return err
		}
		defer l.Close()
		list, err := admin.AskTasks(cmd.Context(), l, *state)
		if err != nil {
			return err
		}
		return cli.Render(cmd.OutOrStdout(), *format, list, func(w io.Writer) { view.TasksTable(w, list, *state) })
	}
	cmd.AddCommand(tasksRetryCommand(), tasksDropCommand())
	return cmd
}

// parseTask parses TASK or DATASET/TASK, the form of a task on the command line. The default dataset is 0.
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
		return 0, 0, cli.UsageErrorf("task %q: expected its number, as master tasks lists it, or DATASET/NUMBER", text)
	}
	return uint32(d), index, nil
}

func tasksRetryCommand() *cobra.Command {
	var all bool
	cmd := steerCommand(&cobra.Command{
		Use:   "retry TASK|--all",
		Short: "Put set-aside tasks back",
		Long: `Retry returns a set-aside task to the queue: it is dispatched again in this pass. Repair the cause first. A job that was paused
because of too many set-aside tasks continues when the number is below the limit. A job that an operator paused waits for
master resume.`,
		Example: `  master tasks retry 17
  master tasks retry --all`,
		Args: cobra.MaximumNArgs(1),
	}, func(ctx context.Context, client pb.AdminClient, job string, args []string) (string, error) {
		req := &pb.RetryTaskRequest{Job: job}
		switch {
		case all == (len(args) == 1):
			return "", cli.UsageErrorf("expected either the number of a task or --all; master tasks --state set_aside lists them")
		case all:
			req.Which = &pb.RetryTaskRequest_All{All: true}
		default:
			dataset, index, err := parseTask(args[0])
			if err != nil {
				return "", err
			}
			req.Dataset, req.Which = dataset, &pb.RetryTaskRequest_Index{Index: index}
		}
		reply, err := client.RetryTask(ctx, req)
		return fmt.Sprintf("tasks put back: %d", reply.GetRetried()), err
	})
	cmd.Flags().BoolVar(&all, "all", false, "all of dataset 0 that are set aside and not dropped")
	return cmd
}

func tasksDropCommand() *cobra.Command {
	return steerCommand(&cobra.Command{
		Use:   "drop TASK",
		Short: "Exclude a set-aside task permanently",
		Long: `Drop excludes a set-aside task: no pass of the job trains it again, and retry does not return it. Reports still count it as
set aside; master verify shows the number of dropped tasks among them.`,
		Example: `  master tasks drop 17`,
		Args:    cobra.ExactArgs(1),
	}, func(ctx context.Context, client pb.AdminClient, job string, args []string) (string, error) {
		dataset, index, err := parseTask(args[0])
		if err != nil {
			return "", err
		}
		_, err = client.DropTask(ctx, &pb.DropTaskRequest{Job: job, Dataset: dataset, Index: index})
		return fmt.Sprintf("task %s is dropped: it stays set aside", args[0]), err
	})
}
