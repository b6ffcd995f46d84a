package main

import (
	"io"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/admin"
	"trainmaster/cmd/internal/cli"
	"trainmaster/cmd/internal/view"
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
	return cmd
}
