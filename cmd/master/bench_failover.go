package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
	"trainmaster/local/bench"
)

func benchFailoverCommand() *cobra.Command {
	var b bench.Failover
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:   "failover",
		Short: "Measure the failover time of a job",
		Long: `Bench failover runs etcd, two masters and a trainer as processes, and makes the leader resign (SIGTERM), die (SIGKILL) or hang
(SIGSTOP) repeatedly. The time counts from the signal to the next task that the trainer gets. Between two faults it
waits for the end of the holddown, in which no second takeover can be forced. With server-kill, server-restart and server-hang the only
parameter server is killed or hangs, and the time counts to the reply to the next push: with a standby, or with a process that is started 100 ms later.`,
		Example: `  master bench failover --mode kill -n 200 -o json
  master bench failover --mode hang -n 20 --holddown 2s
  # a parameter server is killed, and a standby takes its index
  master bench failover --mode server-kill -n 100`,
	}
	flags := cmd.Flags()
	mode := cli.AddChoice(cmd, "mode", "", "how the leader goes, or a parameter server fails", bench.Resign, bench.Kill, bench.Hang, bench.ServerKill, bench.ServerRestart, bench.ServerHang)
	flags.DurationVar(&ttl, "ps-ttl", 10*time.Second, "of the parameter servers' leases, at least 1s")
	flags.IntVarP(&b.N, "number", "n", 20, "how `often`")
	flags.DurationVar(&b.Holddown, "holddown", 10*time.Second, "of the masters, at least 2s")
	flags.StringVar(&b.Folder, "dir", "", "`directory` for etcd's data, on a real disk (default that of temporary files)")
	format := cli.AddOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		switch {
		case b.N < 1:
			return cli.UsageErrorf("--number: expected 1 or more, found %d", b.N)
		case ttl < time.Second:
			return cli.UsageErrorf("--ps-ttl: expected at least 1s, found %v", ttl)
		case b.Holddown < 2*time.Second:
			return cli.UsageErrorf("--holddown: expected at least 2s, the least that etcd grants, found %v", b.Holddown)
		}
		b.Mode = *mode
		if b.Program, err = benchProgram(); err != nil {
			return err
		}
		say, done := benchProgress(cmd.ErrOrStderr())
		defer done()
		b.Stderr, b.Progress = cmd.ErrOrStderr(), say
		run := b.Run
		if bench.OfServer(b.Mode) {
			servers := bench.ServerFailover{Program: b.Program, Folder: b.Folder, Mode: b.Mode, N: b.N, TTL: ttl, Progress: say, Stderr: b.Stderr}
			run = servers.Run
		}
		figures, err := run(cmd.Context())
		if err != nil {
			return err
		}
		done()
		return cli.Render(cmd.OutOrStdout(), *format, figures, func(w io.Writer) {
			fmt.Fprintln(w, "MODE\tN\tP50 MS\tP90 MS\tP99 MS\tMAX MS")
			fmt.Fprintf(w, "%s\t%d\t%.1f\t%.1f\t%.1f\t%.1f\n", figures.Mode, figures.N, figures.P50MS, figures.P90MS, figures.P99MS, figures.MaxMS)
			fmt.Fprintf(w, "\n%s\n", machine(figures.Processors, figures.Disk))
		})
	}
	return cmd
}
