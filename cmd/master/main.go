// Command master runs a distributed training job: it cuts a dataset into tasks, hands them to trainers, keeps its place
// in etcd, and holds the parameter servers.
//
// This package has flags, wiring, signals and exit codes. All else is in the packages that it imports.
//
// Exit codes, the same for every command:
//
//	0  it did what was asked; a daemon that was told to stop and drained also exits 0
//	1  the job failed, or a check found something wrong
//	2  usage: an unknown command, flag or setting, or a value that makes no sense
//	3  the store (etcd) is unreachable, refused us, or has a full disk
//	4  the job ended without the tasks that are set aside
//	130  a signal ended the command before it was done
//
// With --exit-codes pod: 64 usage, 65 the job failed or is incomplete, 75 instead of 3, 143 a signal ended the process before the end of the job.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
	"trainmaster/master"
	"trainmaster/master/podmanager/processes"
	"trainmaster/trainer"
)

func main() {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	ctx := untilSignal(context.Background(), signals, killBy)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run executes one command line and returns its exit code. It is the whole program but for signals, so tests call it.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := rootCommand()
	cli.Rename(root, os.Args[0])
	return execute(ctx, root, args, stdout, stderr)
}

func execute(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return cli.ExitOK
	}
	code, pod := cli.ExitCode(err), cli.UsesPodCodes(cmd, args)
	text := cli.Renamed(root, cli.OneLine(err))
	switch {
	case cli.OnlyInPods(err) && !pod:
		return cli.ExitOK
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		code = cli.ExitInterrupted
		fmt.Fprintf(stderr, "%s: interrupted\n", cmd.CommandPath())
	case cli.OfCommand(err):
		fmt.Fprintf(stderr, "%s: %s\n", cmd.CommandPath(), text)
		return code
	case code == cli.ExitUsage:
		fmt.Fprintf(stderr, "%s: %s\nSee '%s --help'.\n", cmd.CommandPath(), text, cmd.CommandPath())
	default:
		fmt.Fprintf(stderr, "%s: %s\n", cmd.CommandPath(), text)
	}
	//guard:wrong-usage-of-a-standby
	if pod && code == cli.ExitUsage && isSpare(ctx, cmd) {
		fmt.Fprintf(stderr, "Exit code %d instead of %d: another master of the job runs, or etcd does not answer.\n", cli.ExitPodAway, cli.ExitPodUsage)
		code = cli.ExitStore
	}
	//guard:exit-codes-of-pods
	if pod {
		return cli.PodCode(code, jobFailed(err), ctx.Err() != nil)
	}
	return code
}

// jobFailed reports whether a process ended with err because its job has failed: another start of it would end in the same way.
func jobFailed(err error) bool {
	return errors.Is(err, master.ErrJobFailed) || errors.Is(err, trainer.ErrJobFailed) || errors.Is(err, processes.ErrFailed)
}
