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
		Long: `Scale moves blocks of the model between parameter servers until there are N of them with even shares, while the job goes on;
only pushes to the few blocks that are moved at a time wait. For more servers it waits until they are there: start each with
master pserver. Of fewer, the last ones end once their blocks are elsewhere. It goes on when another master takes over, and may be stopped and given again: the job goes on moving.`,
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

// scale asks once for the change, and then how far it is, whoever leads by then.
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
			return fmt.Errorf("the number of parameter servers is to be %d by now: somebody else has changed it", reply.GetGoal())
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
			return fmt.Errorf("the order stands, and since %v no leader has said how far it is: %w", scalePatience, err)
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

// stoppedWatching says that the order outlives the command. was is the number of servers when it was given.
func (l *leader) stoppedWatching(was, n uint32) error {
	back := "N, with N the number before"
	if was != n {
		back = fmt.Sprintf("%d %s", was, l.flags())
	}
	return fmt.Errorf("stopped watching: the job goes on to %s; to take it back: master scale ps=%s", counted(int(n), "parameter server"), back)
}

// progressOf is a line for a user.
func (l *leader) progressOf(reply *pb.ScaleReply) string {
	switch {
	case reply.GetDone():
		return "the model is spread over " + counted(int(reply.GetParameterServers()), "parameter server")
	case reply.GetWaiting() != "":
		return "waiting: " + l.completed(reply.GetWaiting())
	}
	return movingOf(reply)
}

// completed has the command that starts another server lead to this job, if it is known how.
func (l *leader) completed(waiting string) string {
	if len(l.place.etcd.Endpoints) == 0 {
		return waiting
	}
	return strings.ReplaceAll(waiting, shards.StartAnother, shards.StartAnotherWith+l.place.flags()+", and the --checkpoint-dir of the others")
}

// movingOf is what a user sees while blocks move. New servers count as soon as they are there.
func movingOf(reply *pb.ScaleReply) string {
	text := "moving to " + counted(int(reply.GetGoal()), "parameter server")
	if reply.GetParameterServers() > reply.GetGoal() {
		text = fmt.Sprintf("moving from %d to %s", reply.GetParameterServers(), counted(int(reply.GetGoal()), "parameter server"))
	}
	switch {
	case reply.GetSlots() > 0:
		return fmt.Sprintf("%s: %d of %d blocks and %d of %d slots are to go", text, reply.GetBlocksLeft(), reply.GetBlocks(), reply.GetSlotsLeft(), reply.GetSlots())
	case reply.GetBlocks() > 0:
		return fmt.Sprintf("%s: %d of %d blocks are to go", text, reply.GetBlocksLeft(), reply.GetBlocks())
	}
	return text
}
