package main

import (
	"errors"
	"io"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/admin"
	"trainmaster/cmd/internal/cli"
)

func statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show job progress",
		Long: `Status asks the leader of a job for its progress: the share of the work that is done, the time that the rest takes at
the present speed, the tasks of each dataset, and the speed and the loss of the trainers. It names missing parameter servers.

Without flags it asks the leader of a master run that is under way in this directory, else the master at 127.0.0.1:8080. If
neither answers, the error names the newest run that no process uses, and the command that continues it. With
--data-dir or --endpoints it finds the leader in etcd; for a job that has ended it reads the result there. With the
--data-dir or --dir of a job that no process runs, it shows the stored state and the command that continues the job.`,
		Example: `  # the master on this machine
  master status
  # the leader of the job digits, repeatedly
  master status --endpoints 10.0.0.1:2379 --job digits --watch
  # the master whose etcd is in this directory, or the run in that one
  master status --data-dir trainmaster-data
  master status --dir trainmaster-run/003
  # how many tasks are done, for a script
  master status -o json | jq '.datasets[0].done'`,
	}
	_, open := admin.AddLeaderFlags(cmd)
	v := cli.AddWatch(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		l, err := open(cmd.Context())
		if err != nil {
			return err
		}
		defer l.Close()
		return v.Show(cmd, func() (any, func(io.Writer), bool, error) {
			s, err := admin.AskStatus(cmd.Context(), l)
			_, ended := errors.AsType[*admin.EndedError](err)
			_, stopped := errors.AsType[*admin.StoppedError](err)
			if ended || stopped {
				s, err = admin.StoredStatus(cmd.Context(), l)
			}
			return s, s.Table, stopped || s.Ended() || err != nil && l.HasEnded(cmd.Context()), err
		})
	}
	return cmd
}
