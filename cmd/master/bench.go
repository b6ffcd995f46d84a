package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime/pprof"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
	"trainmaster/local/bench"
)

func benchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Run the benchmarks of this project",
		Long: `Bench measures on this machine what the project promises as figures. Nothing that runs is touched. Absolute speeds shift from
machine to machine, ratios and processor time less so. docs/benchmarks.md in the source has figures and how they were made.`,
		Example: `  master bench queue --via inproc,netrpc --callers 1,16,64
  master bench ps
  master bench recordio -o json`,
	}
	cmd.AddCommand(benchQueueCommand(), benchRecoveryCommand(), benchPSCommand(), benchRecordioCommand(), benchDataCommand(), benchFailoverCommand(), benchReconnectCommand(), benchChildCommand())
	return cmd
}

const benchChild = "child"

// benchChildCommand is the other processes of a measurement, which is this program again.
func benchChildCommand() *cobra.Command {
	return &cobra.Command{
		Use:     benchChild,
		Short:   "One process of a measurement",
		Long:    "Child is started by the other commands, and ends when its standard input closes.",
		Example: "  master bench child load '{...}'",
		Hidden:  true,
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return bench.ServeChild(cmd.Context(), args, os.Stdin, cmd.OutOrStdout())
		},
	}
}

// forEtcd is the purpose of the directory of most benchmarks.
const forEtcd = "for etcd's data, on a real disk (default that of temporary files)"

// addBenchDir gives cmd the flag --dir.
func addBenchDir(cmd *cobra.Command, dir *string, purpose string) {
	cmd.Flags().StringVar(dir, "dir", "", "`directory` "+purpose)
}

// benchmark makes cmd print the figures that run measures, after check has accepted the flags. setup is nil for a benchmark that
// starts no processes and shows no progress.
func benchmark[F interface{ Table(io.Writer) }](cmd *cobra.Command, setup *bench.Setup, check func() error, run func(context.Context) (F, error)) *cobra.Command {
	format := cli.AddOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := check(); err != nil {
			return cli.UsageErrorf("%w", err)
		}
		done := func() {}
		if setup != nil {
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program, to start it again: %w", err)
			}
			setup.Program, setup.Stderr = bench.Program{self, "bench", benchChild}, cmd.ErrOrStderr()
			setup.Progress, done = benchProgress(cmd.ErrOrStderr())
		}
		figures, err := run(cmd.Context())
		done()
		if err != nil {
			return err
		}
		return cli.Render(cmd.OutOrStdout(), *format, figures, figures.Table)
	}
	return cmd
}

// dashed makes an error about a setting one about a flag.
func dashed(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("--%w", err)
}

// benchProgress shows the current measurement: on one line of a terminal, or line by line.
func benchProgress(w io.Writer) (say func(string), done func()) {
	if cli.IsTerminal(w) {
		return func(now string) { fmt.Fprintf(w, "\r\033[K%s", now) }, func() { fmt.Fprint(w, "\r\033[K") }
	}
	return func(now string) { fmt.Fprintln(w, now) }, func() {}
}

// profiled runs work under a profile of this process, unless path is empty.
func profiled(path string, work func() error) error {
	if path == "" {
		return work()
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := pprof.StartCPUProfile(file); err != nil {
		return err
	}
	defer pprof.StopCPUProfile()
	return work()
}
