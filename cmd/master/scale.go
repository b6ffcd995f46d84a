package main

import (
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/admin"
	"trainmaster/cmd/internal/cli"
	"trainmaster/master/podmanager"
)

func scaleCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "scale ps=N|workers=N",
		Short: "Change the number of servers or workers",
		Long: `Scale ps=N changes the number of parameter servers to N, and moves blocks of the model until all servers have equal shares. An asynchronous job
continues; only pushes to the blocks of the current migration wait. If N is larger, scale waits for the new servers: start each
with master pserver. If a server of the present number is missing, scale names it and waits for it too. If N is smaller, the servers with the
highest indices exit when they hold no block. The migration continues after a failover, and also if this command is stopped:
repeat the command to show its progress.

A synchronous job rolls back to a new cut on the new servers, and repeats the steps since that cut. Its servers need
--checkpoint-dir.

Scale workers=N changes the number of workers of a job whose master creates pods, within the limits MIN:MAX of --workers. The workers with
the highest indices give their tasks back without a charge and leave; their pods are deleted. Workers that have completed or were given up begin
again. Scale waits until all workers run, and shows why a pod does not. The number is kept if this command is stopped, and after a failover.`,
		Example: `  # a third parameter server for a job with two: start it as well, with master pserver
  master scale ps=3 --endpoints 127.0.0.1:2379
  # one worker pod of a job with --workers 1:4
  master scale workers=1 --endpoints 127.0.0.1:2379`,
		Args: cobra.ExactArgs(1),
	}
	_, open := admin.AddLeaderFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		what, number, _ := strings.Cut(args[0], "=")
		n, err := strconv.Atoi(number)
		most := map[string]int{"ps": mostServers, "workers": podmanager.MaxPods}[what]
		switch {
		case most == 0:
			return cli.UsageErrorf("%q: expected ps=N or workers=N", args[0])
		case err != nil || n < 1 || n > most:
			return cli.UsageErrorf("%q: expected %s=N with N from 1 to %d", args[0], what, most)
		}
		l, err := open(cmd.Context())
		if err != nil {
			return err
		}
		defer l.Close()
		if what == "workers" {
			return admin.ScaleWorkers(cmd, l, uint32(n))
		}
		return admin.Scale(cmd, l, uint32(n))
	}
	return cmd
}
