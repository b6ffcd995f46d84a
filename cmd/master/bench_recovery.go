package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
	"trainmaster/local/bench"
)

func benchRecoveryCommand() *cobra.Command {
	var b bench.Recovery
	cmd := &cobra.Command{
		Use:   "recovery",
		Short: "Measure how long a new leader takes to its first answer",
		Long: `Bench recovery registers a dataset of many files of 1,000 chunks each, a chunk a task, with sizes from a seeded log-normal
distribution. Then fresh processes, one after the other, campaign for the lock, recover the state from etcd and give out a
task. The time counts from the lock won to that answer; heap_bytes is what is live after it.`,
		Example: `  master bench recovery --tasks 10000000 -o json`,
	}
	flags := cmd.Flags()
	flags.IntVar(&b.Tasks, "tasks", 10_000_000, "`tasks` of the dataset")
	flags.IntVar(&b.Rounds, "rounds", 5, "`times` that the state is recovered; the median counts")
	flags.StringVar(&b.Folder, "dir", "", "`directory` for etcd's data, on a real disk (default that of temporary files)")
	format := cli.AddOutput(cmd)
	flags.StringVar(&b.Profile, "cpuprofile", "", "`file` for a profile of the last recovery, for go tool pprof")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if b.Tasks < 1 || b.Rounds < 1 {
			return cli.UsageErrorf("--tasks and --rounds must be 1 or more")
		}
		if b.Program, err = benchProgram(); err != nil {
			return err
		}
		say, done := benchProgress(cmd.ErrOrStderr())
		defer done()
		b.Stderr, b.Progress = cmd.ErrOrStderr(), say
		figures, err := b.Run(cmd.Context())
		if err != nil {
			return err
		}
		done()
		return cli.Render(cmd.OutOrStdout(), *format, figures, func(w io.Writer) {
			const mb = 1e6
			fmt.Fprintln(w, "TASKS\tSECONDS\tCPU SECONDS\tHEAP MB\tPEAK MB\tETCD MB\tREGISTER S")
			fmt.Fprintf(w, "%d\t%.3f\t%.3f\t%.1f\t%.1f\t%.1f\t%.1f\n", figures.Tasks, figures.Seconds, figures.CPUSeconds,
				float64(figures.HeapBytes)/mb, float64(figures.HeapPeakBytes)/mb, float64(figures.EtcdBytes)/mb, figures.RegisterSeconds)
			fmt.Fprintf(w, "\n%s; medians of %d rounds\n", machine(figures.Processors, figures.Disk), figures.Rounds)
		})
	}
	return cmd
}
