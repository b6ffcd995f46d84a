package main

import (
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/admin"
	"trainmaster/cmd/internal/cli"
)

func scaleCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "scale ps=N",
		Short: "Change the number of parameter servers of a running job",
		Long: `Scale changes the number of parameter servers to N, and moves blocks of the model until all servers have equal shares. An asynchronous job
continues; only pushes to the blocks of the current migration wait. If N is larger, scale waits for the new servers: start each
with master pserver. If a server of the present number is missing, scale names it and waits for it too. If N is smaller, the servers with the
highest indices exit when they hold no block. The migration continues after a failover, and also if this command is stopped:
repeat the command to show its progress.

A synchronous job rolls back to a new cut on the new servers, and repeats the steps since that cut. Its servers need
--checkpoint-dir.`,
		Example: `  # a third parameter server for a job with two: start it as well, with master pserver
  master scale ps=3 --endpoints 127.0.0.1:2379`,
		Args: cobra.ExactArgs(1),
	}
	_, open := admin.AddLeaderFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		what, number, _ := strings.Cut(args[0], "=")
		n, err := strconv.Atoi(number)
		if err != nil || what != "ps" || n < 1 || n > mostServers {
			return cli.UsageErrorf("%q: expected ps=N with N from 1 to %d", args[0], mostServers)
		}
		l, err := open(cmd.Context())
		if err != nil {
			return err
		}
		defer l.Close()
		return admin.Scale(cmd, l, uint32(n))
	}
	return cmd
}
