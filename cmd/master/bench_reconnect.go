package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
	"trainmaster/local/bench"
)

func benchReconnectCommand() *cobra.Command {
	var b bench.Reconnect
	cmd := &cobra.Command{
		Use:   "reconnect",
		Short: "Measure a failover with thousands of trainers",
		Long: `Bench reconnect runs etcd, two masters and a process with many trainers, which all hold a session and a connection and work
slowly. Then the leader dies (SIGKILL) or hangs (SIGSTOP). It measures how long it takes until the next leader has answered
every trainer, how long GetTask takes before the fault and from five seconds after it, and the leader's memory; and it
compares the finishes that were acknowledged with the ledger: none may be lost, and none counted twice.

The process of the trainers and the leader need a connection for each trainer: the limit of open files (ulimit -Hn) must be
500 above their number.`,
		Example: `  master bench reconnect --trainers 10000 -o json
  master bench reconnect --trainers 200 --task-time 1s --mode hang`,
	}
	flags := cmd.Flags()
	mode := cli.AddChoice(cmd, "mode", "", "how the leader goes", bench.Kill, bench.Hang)
	flags.IntVar(&b.Trainers, "trainers", 10_000, "how `many`")
	flags.DurationVar(&b.TaskTime, "task-time", 10*time.Second, "of a task, on average")
	flags.DurationVar(&b.Window, "window", 5*time.Second, "over which latencies are gathered, before and after")
	flags.StringVar(&b.Folder, "dir", "", "`directory` for etcd's data, on a real disk (default that of temporary files)")
	format := cli.AddOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		b.Mode = *mode
		if err := b.Validate(); err != nil {
			return cli.UsageErrorf("--%w", err)
		}
		if b.Program, err = benchProgram(); err != nil {
			return err
		}
		say, done := benchProgress(cmd.ErrOrStderr())
		defer done()
		b.Stderr, b.Progress = cmd.ErrOrStderr(), say
		f, err := b.Run(cmd.Context())
		if err != nil {
			return err
		}
		done()
		return cli.Render(cmd.OutOrStdout(), *format, f, func(w io.Writer) {
			fmt.Fprintln(w, "TRAINERS\tMODE\tJOIN S\tBACK S\tP99 BEFORE MS\tP99 AFTER MS\tTASKS/S\tLOST\tDOUBLED\tRSS MIB\tIDLE MIB")
			fmt.Fprintf(w, "%d\t%s\t%.1f\t%.2f\t%.1f\t%.1f\t%.0f\t%d\t%d\t%d\t%d\n", f.Trainers, f.Mode, f.JoinSeconds, f.BackSeconds,
				f.P99BeforeMS, f.P99AfterMS, f.TasksPerS, f.Lost, f.Doubled, f.RSSBytes>>20, f.RSSIdleBytes>>20)
			fmt.Fprintf(w, "\n%s\n", machine(f.Processors, f.Disk))
		})
	}
	return cmd
}
