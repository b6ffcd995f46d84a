package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/admin"
	"trainmaster/cmd/internal/cli"
	pb "trainmaster/proto/trainmaster/v1"
)

func datasetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dataset",
		Short: "Change the online datasets of a job",
		Long: `Dataset appends files to an online dataset (--dataset 'NAME=PATH,online' of the master) and closes it. Its commands send a request to
the leader, and return when the change is committed.`,
		Example: `  master dataset append clicks '/data/clicks/2026-11-25-*'`,
	}
	cmd.AddCommand(datasetAppendCommand(), datasetCloseCommand())
	return cmd
}

// appendTimeout is the limit of a request that indexes files. The master remembers the indexed files for the next request.
const appendTimeout = 10 * time.Minute

func datasetAppendCommand() *cobra.Command {
	return datasetRequest(&cobra.Command{
		Use:   "append NAME PATH...",
		Short: "Append files to an online dataset",
		Long: `Append adds the files to an online dataset, all of them or none, and returns when this is committed. Each PATH is a path, a glob or a
URL on the machine of the leader, below --data-roots. The tasks of the files follow the tasks of the dataset; one chunk is one task.

A file that was appended before is not appended again, so the command can be repeated after an error. A file that has changed since it
was appended is an error. At most 10 minutes are for the index; the next call continues with the files that are indexed.`,
		Example: `  # new files for --dataset 'clicks=/data/clicks/first-*,online' of the master
  master dataset append clicks '/data/clicks/2026-11-25-*'`,
		Args: cobra.MinimumNArgs(2),
	}, func(ctx context.Context, client pb.AdminClient, job string, args []string) (string, error) {
		r, err := client.AppendDataset(ctx, &pb.AppendDatasetRequest{Job: job, Name: args[0], Paths: args[1:]})
		said := fmt.Sprintf("appended %s in %s: %s has %s", cli.Counted(int(r.GetFiles()), "file"), cli.Counted(int(r.GetTasks()), "task"), args[0], cli.Counted(int(r.GetTotalTasks()), "task"))
		if n := r.GetKnownFiles(); n > 0 {
			said += fmt.Sprintf("; %s appended before", cli.Counted(int(n), "file"))
		}
		return said, err
	})
}

func datasetCloseCommand() *cobra.Command {
	return datasetRequest(&cobra.Command{
		Use:   "close NAME",
		Short: "Close an online dataset",
		Long: `Close ends the growth of an online dataset: its first pass ends when all tasks are done, and further passes follow over all data. The
files that match the paths of --dataset now are appended before. If one of them cannot be read, the dataset stays open. A closed dataset
stays closed: the command can be repeated.`,
		Example: `  # no more files: train the rest, and end the job after the last pass
  master dataset close clicks`,
		Args: cobra.ExactArgs(1),
	}, func(ctx context.Context, client pb.AdminClient, job string, args []string) (string, error) {
		r, err := client.CloseDataset(ctx, &pb.CloseDatasetRequest{Job: job, Name: args[0]})
		return fmt.Sprintf("%s is closed with %s", args[0], cli.Counted(int(r.GetTasks()), "task")), err
	})
}

// datasetRequest makes a command that sends a request to the leader and prints the result.
func datasetRequest(cmd *cobra.Command, tell func(ctx context.Context, client pb.AdminClient, job string, args []string) (said string, err error)) *cobra.Command {
	_, open := admin.AddLeaderFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		l, err := open(cmd.Context())
		if err != nil {
			return err
		}
		defer l.Close()
		var said string
		err = l.AskWithin(cmd.Context(), appendTimeout, func(ctx context.Context, client pb.AdminClient) (err error) {
			said, err = tell(ctx, client, l.Job, args)
			return err
		})
		if err == nil {
			fmt.Fprintln(cmd.OutOrStdout(), said)
		}
		return err
	}
	return cmd
}
