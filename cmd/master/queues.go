package main

import (
	"io"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/admin"
	"trainmaster/cmd/internal/cli"
)

func queuesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "queues",
		Short: "List dispatched, waiting and set-aside tasks",
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
	from, open := admin.AddLeaderFlags(cmd)
	v := cli.AddWatch(cmd)
	limit := cmd.Flags().Int("limit", 20, "at most so many `tasks` of each list in a table (0: all)")
	literal := cmd.Flags().Bool("literal", false, "decode the state in etcd, with no master")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx := cmd.Context()
		if *limit < 0 {
			return cli.SettingErrorf(cmd, "limit", "expected 0 (all) or more")
		}
		if *literal {
			store, closeStore, err := from.Open(ctx)
			if err != nil {
				return err
			}
			defer closeStore()
			return v.Show(cmd, func() (any, func(io.Writer), bool, error) {
				q, err := admin.ReadLiteral(ctx, store, from)
				return q, func(w io.Writer) { q.Table(w, *limit) }, q.Ended(), err
			})
		}
		l, err := open(ctx)
		if err != nil {
			return err
		}
		defer l.Close()
		return v.Show(cmd, func() (any, func(io.Writer), bool, error) {
			q, err := admin.AskQueues(ctx, l)
			return q, func(w io.Writer) { q.Table(w, *limit) }, q.Ended() || err != nil && l.HasEnded(ctx), err
		})
	}
	return cmd
}
