package main

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"trainmaster/etcdstore"
	"trainmaster/local/drill"
	"trainmaster/taskqueue"
)

// drills are the commands below `master drill`.
var drills = []struct{ kind, short, long, example string }{
	{drill.KillLeader, "Kill the leader with SIGKILL", "Kill the master that leads, as kill -9 does. A stand-by takes over; without one, `master run` starts it again.",
		"  master drill kill-leader\n  # a job of daemons, for a script\n  master drill kill-leader --endpoints 127.0.0.1:2379 -o json"},
	{drill.PauseLeader, "Stop the leader with SIGSTOP", "Stop the master that leads until another one does, or for the time of --for, and let it go on: its term must be over for good.",
		"  master drill pause-leader"},
	{drill.KillTrainer, "Kill a trainer with SIGKILL", "Kill a trainer that holds a task. Others get what it held.",
		"  master drill kill-trainer\n  master drill kill-trainer --trainer trainer-1"},
	{drill.Partition, "Cut the leader off from etcd", "Lose whatever the leader and etcd say to each other, without breaking a connection, until another master leads, or for the time of --for. The run must be --drillable.",
		"  master drill partition --for 20s"},
	{drill.SlowStore, "Make etcd slow", "Let everything that masters and etcd say to each other arrive late, for the time of --for. The run must be --drillable.",
		"  master drill slow-store --delay 500ms --for 10s"},
}

func drillCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "drill",
		Short: "Make a fault happen to a running job, and see that nothing is lost",
		Long: `Drill hurts a running job on purpose and reports who took over, after how long, what was given out again, and, by the
job's ledger, whether anything was lost or counted twice. It exits with 1 if anything was.

It finds the job of a ` + "`master run`" + ` on this machine by the folder of the run; any other job by the --endpoints of its etcd, where the
leader must be a process of this machine and this user. Whatever a drill does to a process that lives it undoes, also when
you interrupt it.`,
		Example: `  # in one terminal
  master run --masters 2 --drillable --passes 500
  # in another one, in the same folder
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
	from := place{etcd: addEtcdFlags(cmd)}
	flags := cmd.Flags()
	dir := flags.String("dir", runsDir, "`folder` of a run that is under way, or of several runs: the newest of them")
	flags.DurationVar(&d.Patience, "patience", 2*time.Minute, "how long to wait for the job to go on, and to count what trainers held")
	switch kind {
	case drill.KillTrainer:
		flags.StringVar(&d.Trainer, "trainer", "", "`name` of the trainer (default: one that holds a task)")
		err := cmd.RegisterFlagCompletionFunc("trainer", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			var names []string
			if scene, _, err := findRun(*dir); err == nil {
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
		flags.DurationVar(&d.Delay, "delay", 500*time.Millisecond, "how much later everything arrives, each way")
	}
	if kind != drill.Partition && kind != drill.SlowStore {
		flags.IntVar(&d.PID, "pid", 0, "`number` of the process to hurt (default: found)")
	}
	format := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := validateDrill(cmd, d); err != nil {
			return err
		}
		closeStore, err := openDrill(cmd.Context(), d, &from, *dir, cmd.Flag("dir").Changed)
		if err != nil {
			return err
		}
		defer closeStore()
		d.Progress = func(now string) { fmt.Fprintln(cmd.ErrOrStderr(), now) }
		report, err := d.Run(cmd.Context())
		if err != nil {
			return err
		}
		if err := render(cmd.OutOrStdout(), *format, report, report.Table); err != nil || report.OK() {
			return err
		}
		return fmt.Errorf("%s lost, %d counted twice", counted(report.Lost, "task"), report.CountedTwice)
	}
	return cmd
}

func validateDrill(cmd *cobra.Command, d *drill.Drill) error {
	for name, value := range map[string]time.Duration{"patience": d.Patience, "for": d.For, "delay": d.Delay} {
		if cmd.Flags().Lookup(name) != nil && value <= 0 {
			return settingErrorf(cmd, name, "expected more than 0")
		}
	}
	if d.PID < 0 {
		return settingErrorf(cmd, "pid", "expected the number of a process")
	}
	return nil
}

// openDrill finds the job: by etcd if endpoints are given, else by the folder of its run.
func openDrill(ctx context.Context, d *drill.Drill, from *place, dir string, dirChosen bool) (closeStore func(), err error) {
	if len(from.etcd.Endpoints) == 0 || dirChosen {
		if d.Scene, _, err = findRun(dir); err != nil {
			return nil, usageErrorf("%w", err)
		}
		if len(from.etcd.Endpoints) == 0 {
			from.etcd.Endpoints = []string{d.Scene.Endpoint}
		}
	}
	if d.Store, closeStore, err = from.open(ctx); err != nil {
		return nil, err
	}
	d.Ledger = func(ctx context.Context, through uint64) iter.Seq2[drill.Entry, error] {
		return entries(ctx, d.Store, *from, through)
	}
	d.Verify = func(ctx context.Context) ([]taskqueue.PassReport, error) { return verify(ctx, d.Store, *from, "") }
	return closeStore, nil
}

// entries reads the ledger up to a commit.
func entries(ctx context.Context, store *etcdstore.Store, from place, through uint64) iter.Seq2[drill.Entry, error] {
	return func(yield func(drill.Entry, error) bool) {
		reader, _, err := openLedger(ctx, store, from, "")
		if err != nil {
			yield(drill.Entry{}, err)
			return
		}
		for e, err := range reader.Entries(ctx, through) {
			if !yield(drill.Entry{Commit: e.Commit, Events: e.Events}, err) {
				return
			}
		}
	}
}
