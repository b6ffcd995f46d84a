package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"trainmaster/master/shards"
	pb "trainmaster/proto/trainmaster/v1"
)

const (
	scalePoll = 200 * time.Millisecond
	// scalePatience is how long an order that a leader has taken waits for another leader to say how far it is.
	scalePatience = 2 * time.Minute
)

func scaleCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "scale ps=N",
		Short: "Change the number of parameter servers of a running job",
		Long: `Scale changes the number of parameter servers to N, and moves blocks of the model until all servers have equal shares. The job
continues; only pushes to the blocks of the current migration wait. If N is larger, scale waits for the new servers: start each
with master pserver. If N is smaller, the servers with the highest indices exit when they hold no block. The migration
continues after a failover, and also if this command is stopped: repeat the command to show its progress.`,
		Example: `  # a third parameter server for a job with two: start it as well, with master pserver
  master scale ps=3 --endpoints 127.0.0.1:2379`,
		Args: cobra.ExactArgs(1),
	}
	_, open := addLeaderFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		what, number, _ := strings.Cut(args[0], "=")
		n, err := strconv.Atoi(number)
		if err != nil || what != "ps" || n < 1 || n > mostServers {
			return usageErrorf("%q: expected ps=N with N from 1 to %d", args[0], mostServers)
		}
		l, err := open(cmd.Context())
		if err != nil {
			return err
		}
		defer l.hangUp()
		return scale(cmd, l, uint32(n))
	}
	return cmd
}

// scale requests the change once, then its progress until it is complete. It follows the leader.
func scale(cmd *cobra.Command, l *leader, n uint32) error {
	said, heard, was := "", time.Now(), uint32(0)
	say := func(line string) {
		if line != said {
			fmt.Fprintln(cmd.OutOrStdout(), line)
			said = line
		}
	}
	poll := time.NewTicker(scalePoll)
	defer poll.Stop()
	for request := (&pb.ScaleRequest{Job: l.job, ParameterServers: n}); ; {
		var reply *pb.ScaleReply
		err := l.ask(cmd.Context(), func(ctx context.Context, o pb.OperatorClient) (err error) {
			reply, err = o.Scale(ctx, request)
			return err
		})
		taken := request.GetParameterServers() == 0
		_, isOver := errors.AsType[*overError](err)
		switch {
		case err == nil && taken && reply.GetGoal() != n:
			return fmt.Errorf("number of parameter servers: another request has changed it to %d", reply.GetGoal())
		case err == nil:
			if !taken {
				was = reply.GetParameterServers()
			}
			heard, request.ParameterServers = time.Now(), 0
			say(l.progressOf(reply))
		case taken && cmd.Context().Err() != nil:
			return l.stoppedWatching(was, n)
		case !taken || isOver:
			return err
		case time.Since(heard) > scalePatience:
			return fmt.Errorf("request stored; no progress report for %v: %w", scalePatience, err)
		default:
			say("waiting for a leader: " + err.Error())
		}
		if reply.GetDone() {
			return nil
		}
		select {
		case <-poll.C:
		case <-cmd.Context().Done():
			return l.stoppedWatching(was, n)
		}
	}
}

// stoppedWatching returns the error of an interrupted command: the request remains. was is the number of servers at the request.
func (l *leader) stoppedWatching(was, n uint32) error {
	back := "N, with N the former number"
	if was != n {
		back = fmt.Sprintf("%d %s", was, l.flags())
	}
	return fmt.Errorf("stopped watching: the job continues to move to %s; to undo it: master scale ps=%s", counted(int(n), "parameter server"), back)
}

// progressOf is a line for a user.
func (l *leader) progressOf(reply *pb.ScaleReply) string {
	switch {
	case reply.GetDone():
		return "the model is distributed over " + counted(int(reply.GetParameterServers()), "parameter server")
	case reply.GetWaiting() != "":
		return "waiting: " + l.completed(reply.GetWaiting())
	}
	return movingOf(reply)
}

// completed adds the flags of this job to the command in waiting that starts another server, if they are known.
func (l *leader) completed(waiting string) string {
	if len(l.place.etcd.Endpoints) == 0 {
		return waiting
	}
	return strings.ReplaceAll(waiting, shards.StartAnother, shards.StartAnotherWith+l.place.flags()+", and the --checkpoint-dir of the others")
}

// movingOf describes a migration. New servers count as soon as they are registered.
func movingOf(reply *pb.ScaleReply) string {
	text := "moving to " + counted(int(reply.GetGoal()), "parameter server")
	if reply.GetParameterServers() > reply.GetGoal() {
		text = fmt.Sprintf("moving from %d to %s", reply.GetParameterServers(), counted(int(reply.GetGoal()), "parameter server"))
	}
	switch {
	case reply.GetSlots() > 0:
		return fmt.Sprintf("%s: %d of %d blocks and %d of %d slots to move", text, reply.GetBlocksLeft(), reply.GetBlocks(), reply.GetSlotsLeft(), reply.GetSlots())
	case reply.GetBlocks() > 0:
		return fmt.Sprintf("%s: %d of %d blocks to move", text, reply.GetBlocksLeft(), reply.GetBlocks())
	}
	return text
}
