package main

import (
	"fmt"
	"io"
	"os"
	"runtime/pprof"

	"github.com/spf13/cobra"
	"golang.org/x/term"

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
	cmd.AddCommand(benchQueueCommand(), benchRecoveryCommand(), benchPSCommand(), benchRecordioCommand(), benchFailoverCommand(), benchReconnectCommand(), benchChildCommand())
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

// benchProgram leads to benchChildCommand.
func benchProgram() (bench.Program, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program, to start it again: %w", err)
	}
	return bench.Program{self, "bench", benchChild}, nil
}

// benchProgress shows the current measurement: on one line of a terminal, or line by line.
func benchProgress(w io.Writer) (say func(string), done func()) {
	if file, ok := w.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		return func(now string) { fmt.Fprintf(w, "\r\033[K%s", now) }, func() { fmt.Fprint(w, "\r\033[K") }
	}
	return func(now string) { fmt.Fprintln(w, now) }, func() {}
}

// machine says in words what was measured on.
func machine(processors int, d bench.Disk) string {
	if d.InMemory {
		return fmt.Sprintf("%d processors; %s is in memory, no disk was measured: name a directory on a disk with --dir", processors, d.Folder)
	}
	return fmt.Sprintf("%d processors, fdatasync p50 %.0f us in %s", processors, d.FdatasyncP50US, d.Folder)
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
