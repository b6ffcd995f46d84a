package main

import (
	"io"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/admin"
	"trainmaster/cmd/internal/cli"
	"trainmaster/cmd/internal/view"
)

func podsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pods",
		Short: "List the pods of a job",
		Long: `Pods lists the pods that the master of a job creates in Kubernetes, as the leader reports them: the newest attempt of each index, its
charged relaunches, and why it waits or why the previous attempt ended.`,
		Example: `  master pods
  # pods that do not run, with the reason
  master pods -o json | jq '.pods[] | select(.phase != "Running") | {name, phase, reason}'`,
		Args: cobra.NoArgs,
	}
	_, open := admin.AddLeaderFlags(cmd)
	format := cli.AddOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		l, err := open(cmd.Context())
		if err != nil {
			return err
		}
		defer l.Close()
		list, err := admin.AskPods(cmd.Context(), l)
		if err != nil {
			return err
		}
		return cli.Render(cmd.OutOrStdout(), *format, list, func(w io.Writer) { view.PodsTable(w, list) })
	}
	return cmd
}
