package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	pb "trainmaster/proto/trainmaster/v1"
)

// What an operator tells the leader. Each command ends once that is committed.

// steerCommand makes a command that tells the leader something, and then says what is so now.
func steerCommand(cmd *cobra.Command, tell func(ctx context.Context, o pb.OperatorClient, job string, args []string) (said string, err error)) *cobra.Command {
	_, open := addLeaderFlags(cmd)
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
		defer l.hangUp()
		var said string
		err = l.ask(cmd.Context(), func(ctx context.Context, o pb.OperatorClient) (err error) {
			said, err = tell(ctx, o, l.job, args)
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
		Short: "Let a trainer finish its task and leave",
		Long: `Drain takes a trainer out of a job in order: it finishes the task that it runs, gets no other, and ends with exit code 0. A
task that it had fetched and not begun goes to another trainer; nothing is charged. The other trainers go on.

A trainer that is started again under the same name is not drained.`,
		Example: `  # take the machine of the trainer worker-3 out of service; master trainers lists the names
  master drain worker-3`,
		Args: cobra.ExactArgs(1),
	}, func(ctx context.Context, o pb.OperatorClient, job string, args []string) (string, error) {
		_, err := o.Drain(ctx, &pb.DrainRequest{Job: job, Trainer: args[0]})
		return fmt.Sprintf("trainer %s drains: it leaves when its task is finished", args[0]), err
	})
}

func pauseCommand() *cobra.Command {
	var reason string
	cmd := steerCommand(&cobra.Command{
		Use:   "pause",
		Short: "Dispatch nothing more until resume",
		Long: `Pause stops a job from dispatching tasks, until master resume. Trainers finish what they have, and it counts; the time that
a task is given goes on. The job stays paused when another master takes over.`,
		Example: `  master pause --reason "the disk of /data is exchanged"`,
	}, func(ctx context.Context, o pb.OperatorClient, job string, _ []string) (string, error) {
		_, err := o.Pause(ctx, &pb.PauseRequest{Job: job, Reason: reason})
		return "the job is paused: tasks that trainers have are finished, no other is dispatched", err
	})
	cmd.Flags().StringVar(&reason, "reason", "", "`text` that master status shows meanwhile")
	return cmd
}

func resumeCommand() *cobra.Command {
	return steerCommand(&cobra.Command{
		Use:   "resume",
		Short: "Let a paused job go on",
		Long: `Resume lets a paused job go on, whether an operator paused it or too many tasks were set aside. In the latter case the next
task that is set aside pauses it again.`,
		Example: `  master resume`,
	}, func(ctx context.Context, o pb.OperatorClient, job string, _ []string) (string, error) {
		_, err := o.Resume(ctx, &pb.ResumeRequest{Job: job})
		return "the job is running", err
	})
}
