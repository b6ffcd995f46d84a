package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/admin"
	"trainmaster/cmd/internal/cli"
	"trainmaster/cmd/internal/view"
	pb "trainmaster/proto/trainmaster/v1"
)

func trainersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trainers",
		Short: "List the trainers of a job",
		Long: `Trainers lists the trainers of a job, as the leader reports them: the tasks of each trainer, its speed, and whether it is
being drained.`,
		Example: `  master trainers
  # trainers that have been silent for more than five seconds
  master trainers -o json | jq '.[] | select(.silent_s > 5) | .id'`,
	}
	_, open := admin.AddLeaderFlags(cmd)
	format := cli.AddOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		l, err := open(cmd.Context())
		if err != nil {
			return err
		}
		defer l.Close()
		list, err := admin.AskTrainers(cmd.Context(), l)
		if err != nil {
			return err
		}
		return cli.Render(cmd.OutOrStdout(), *format, list, func(w io.Writer) { view.TrainersTable(w, list) })
	}
	cmd.AddCommand(stopTasksCommand(), evaluateTrainerCommand())
	return cmd
}

func stopTasksCommand() *cobra.Command {
	return steerCommand(&cobra.Command{
		Use:   "stop TRAINER",
		Short: "Stop what a trainer runs",
		Long: `Stop takes the task that a trainer runs away without a failure, so that it is dispatched again, and stops it at the trainer:
immediately at a trainer that serves TrainerControl, otherwise with its next heartbeat. The trainer continues with another task. Use it for a trainer that
hangs before the timeout of its task. A trainer that does not follow stops, and a trainer without a session, must be ended instead.

In a job with --explicit-commit or --update-mode sync, the command is refused: use master drain.`,
		Example: `  # the trainer worker-3 hangs in its task; master trainers lists the names
  master trainers stop worker-3`,
		Args: cobra.ExactArgs(1),
	}, func(ctx context.Context, client pb.AdminClient, job string, args []string) (string, error) {
		reply, err := client.StopTasks(ctx, &pb.StopTasksRequest{Job: job, Trainer: args[0]})
		if n := len(reply.GetTaskIds()); n > 0 {
			return fmt.Sprintf("trainer %s stops its task %d, which is dispatched again", args[0], reply.GetTaskIds()[0]), err
		}
		return fmt.Sprintf("trainer %s runs no task", args[0]), err
	})
}

func evaluateTrainerCommand() *cobra.Command {
	return steerCommand(&cobra.Command{
		Use:   "evaluate TRAINER",
		Short: "Evaluate the own model of a trainer",
		Long: `Evaluate begins an evaluation round of the model that one trainer has now, on the held-out data of the job. Only this trainer
receives the tasks of the round. A trainer that serves TrainerControl pauses its training for each task, between two mini-batches; other trainers evaluate
between two training tasks. The command ends when the request is stored: master evaluations shows the figures when the round has ended. If a round is
open, the next round begins after it.

The figures are not compared with --best-metric and --target, and end no job. If the trainer leaves, fails a task, or finishes no task
for 10 minutes, the round ends with the reason and without figures.

The master must have --evaluation-data. In a job with --update-mode sync, the command is refused: all trainers have the same model.`,
		Example: `  # the model of worker-3; master trainers lists the names
  master trainers evaluate worker-3`,
		Args: cobra.ExactArgs(1),
	}, func(ctx context.Context, client pb.AdminClient, job string, args []string) (string, error) {
		if args[0] == "" {
			return "", cli.UsageErrorf("expected the name of a trainer, found an empty argument")
		}
		_, err := client.Evaluate(ctx, &pb.EvaluateRequest{Job: job, Trainer: args[0]})
		return fmt.Sprintf("an evaluation round of trainer %s is requested", args[0]), err
	})
}
