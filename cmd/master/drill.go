package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/admin"
	"trainmaster/cmd/internal/cli"
	"trainmaster/local/drill"
)

// drills are the commands below `master drill`.
var drills = []struct{ kind, short, long, example string }{
	{drill.KillLeader, "Kill the leader with SIGKILL", "Kill the leader, as kill -9 does. A standby takes over; without a standby, `master run` restarts the leader.",
		"  master drill kill-leader\n  # a job of daemons, for a script\n  master drill kill-leader --endpoints 127.0.0.1:2379 -o json"},
	{drill.PauseLeader, "Stop the leader with SIGSTOP", "Stop the leader until another master leads, or for the time of --for, and continue it: its term must have ended.",
		"  master drill pause-leader"},
	{drill.KillTrainer, "Kill a trainer with SIGKILL", "Kill a trainer that holds a task. Its tasks go to other trainers.",
		"  master drill kill-trainer\n  master drill kill-trainer --trainer trainer-1"},
	{drill.Partition, "Cut the leader off from etcd", "Drop all data between the leader and etcd, without closing a connection, until another master leads, or for the time of --for. The run must be --drillable.",
		"  master drill partition --for 20s"},
	{drill.SlowStore, "Make etcd slow", "Delay all data between masters and etcd for the time of --for. The run must be --drillable.",
		"  master drill slow-store --delay 500ms --for 10s"},
}

func drillCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "drill",
		Short: "Inject a fault into a running job",
		Long: `Drill injects a fault into a running job. It reports the new leader, the time of the failover and the tasks that were dispatched
again. It exits with 1 if, by the ledger of the job, a task was lost or counted twice.

It finds the job of a ` + "`master run`" + ` on this machine by the directory of the run, and any other job by the --endpoints of its etcd. The
leader must be a process of this machine and this user. A drill undoes its faults at the end, also if it is interrupted.`,
		Example: `  # in one terminal
  master run --masters 2 --drillable --passes 500
  # in another one, in the same directory
  master drill kill-leader
  master drill partition`,
	}
	for _, d := range drills {
		cmd.AddCommand(oneDrillCommand(d.kind, d.short, d.long, d.example))
	}
	return cmd
}

func oneDrillCommand(kind, short, long, example string) *cobra.Command {
	d := &drill.Drill{Kind: kind}
	cmd := &cobra.Command{Use: kind, Short: short, Long: long, Example: example}
	from := admin.Location{Etcd: cli.AddEtcdFlags(cmd)}
	flags := cmd.Flags()
	dir := flags.String("dir", admin.RunsDir, "`directory` of a run that is under way, or of several runs: the newest of them")
	flags.DurationVar(&d.Patience, "patience", 2*time.Minute, "maximum `time` to wait for the job to continue, and for the tasks that trainers held to be counted")
	switch kind {
	case drill.KillTrainer:
		flags.StringVar(&d.Trainer, "trainer", "", "`name` of the trainer (default: a trainer that holds a task)")
		err := cmd.RegisterFlagCompletionFunc("trainer", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			var names []string
			if scene, _, err := admin.FindRun(*dir); err == nil {
				for _, p := range scene.Processes {
					if strings.HasPrefix(p.Name, "trainer") {
						names = append(names, p.Name)
					}
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		})
		if err != nil {
			panic(err) // the flag was added a line ago
		}
	case drill.PauseLeader, drill.Partition:
		flags.DurationVar(&d.For, "for", 30*time.Second, "how long the fault lasts at most, if no other master leads before")
	case drill.SlowStore:
		flags.DurationVar(&d.For, "for", 10*time.Second, "how long the fault lasts")
		flags.DurationVar(&d.Delay, "delay", 500*time.Millisecond, "added `time` in each direction")
	}
	if kind != drill.Partition && kind != drill.SlowStore {
		flags.IntVar(&d.PID, "pid", 0, "`number` of the process to hurt (default: found)")
	}
	format := cli.AddOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := validateDrill(cmd, d); err != nil {
			return err
		}
		closeStore, err := admin.OpenDrill(cmd.Context(), d, &from, *dir, cmd.Flag("dir").Changed)
		if err != nil {
			return err
		}
		defer closeStore()
		d.Progress = func(now string) { fmt.Fprintln(cmd.ErrOrStderr(), now) }
		report, err := d.Run(cmd.Context())
		if err != nil {
			return err
		}
		if err := cli.Render(cmd.OutOrStdout(), *format, report, report.Table); err != nil || report.OK() {
			return err
		}
		return fmt.Errorf("%s lost, %d counted twice", cli.Counted(report.Lost, "task"), report.CountedTwice)
	}
	return cmd
}

func validateDrill(cmd *cobra.Command, d *drill.Drill) error {
	for name, value := range map[string]time.Duration{"patience": d.Patience, "for": d.For, "delay": d.Delay} {
		if cmd.Flags().Lookup(name) != nil && value <= 0 {
			return cli.SettingErrorf(cmd, name, "expected more than 0")
		}
	}
	if d.PID < 0 {
		return cli.SettingErrorf(cmd, "pid", "expected the number of a process")
	}
	return nil
}
