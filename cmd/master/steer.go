package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/admin"
	pb "trainmaster/proto/trainmaster/v1"
)

// Commands of an operator to the leader. Each command ends when its request is committed.

// steerCommand makes a command that sends a request to the leader and prints the result.
func steerCommand(cmd *cobra.Command, tell func(ctx context.Context, client pb.AdminClient, job string, args []string) (said string, err error)) *cobra.Command {
	_, open := admin.AddLeaderFlags(cmd)
	if strings.HasSuffix(cmd.Use, " TRAINER") {
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return trainerNames(cmd, open), cobra.ShellCompDirectiveNoFileComp
		}
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		l, err := open(cmd.Context())
		if err != nil {
			return err
		}
		defer l.Close()
		var said string
		err = l.Ask(cmd.Context(), func(ctx context.Context, client pb.AdminClient) (err error) {
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

func drainCommand() *cobra.Command {
	return steerCommand(&cobra.Command{
		Use:   "drain TRAINER",
		Short: "Drain a trainer",
		Long: `Drain takes a trainer out of a job in order: it finishes the task that it runs, gets no other, and exits with code 0. A
task that it has fetched but not begun goes to another trainer, without counting a failure. The other trainers continue. A
trainer in Python leaves after its mini-batch: the rest of its task is dispatched again, without counting a failure.

A trainer that is started again under the same name is not drained.`,
		Example: `  # take the machine of the trainer worker-3 out of service; master trainers lists the names
  master drain worker-3`,
		Args: cobra.ExactArgs(1),
	}, func(ctx context.Context, client pb.AdminClient, job string, args []string) (string, error) {
		_, err := client.Drain(ctx, &pb.DrainRequest{Job: job, Trainer: args[0]})
		return fmt.Sprintf("trainer %s drains: it leaves when its task is finished", args[0]), err
	})
}

func pauseCommand() *cobra.Command {
	var reason string
	cmd := steerCommand(&cobra.Command{
		Use:   "pause",
		Short: "Pause the dispatch of tasks",
		Long: `Pause stops a job from dispatching tasks, until master resume. Trainers finish their tasks, and these count. The timeouts
of tasks still apply. The job stays paused after a failover.`,
		Example: `  master pause --reason "the disk of /data is exchanged"`,
	}, func(ctx context.Context, client pb.AdminClient, job string, _ []string) (string, error) {
		_, err := client.Pause(ctx, &pb.PauseRequest{Job: job, Reason: reason})
		return "the job is paused: tasks that trainers have are finished, no other is dispatched", err
	})
	cmd.Flags().StringVar(&reason, "reason", "", "`text` that master status shows while the job is paused")
	return cmd
}

func resumeCommand() *cobra.Command {
	return steerCommand(&cobra.Command{
		Use:   "resume",
		Short: "Continue a paused job",
		Long: `Resume continues a job that an operator paused, or that was paused because too many tasks are set aside. In the second case
the next set-aside task pauses it again.`,
		Example: `  master resume`,
	}, func(ctx context.Context, client pb.AdminClient, job string, _ []string) (string, error) {
		_, err := client.Resume(ctx, &pb.ResumeRequest{Job: job})
		return "the job is running", err
	})
}
