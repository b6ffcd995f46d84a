package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
	"trainmaster/master/psclient"
	pb "trainmaster/proto/trainmaster/v1"
)

const (
	scalePoll = 200 * time.Millisecond
	// scalePatience is the maximum time without a progress report after the request is stored.
	scalePatience = 2 * time.Minute
)

// Scale requests the change once, then its progress until it is complete. It follows the leader. While a parameter server that the change
// needs is missing or has no parameters, Scale repeats the request.
func Scale(cmd *cobra.Command, l *Leader, n uint32) error {
	said, heard, was := "", time.Now(), uint32(0)
	say := func(line string) {
		if line != said {
			fmt.Fprintln(cmd.OutOrStdout(), line)
			said = line
		}
	}
	poll := time.NewTicker(scalePoll)
	defer poll.Stop()
	for request := (&pb.ScaleRequest{Job: l.Job, ParameterServers: n}); ; {
		var reply *pb.ScaleReply
		ctx, release := lingering(cmd.Context())
		err := l.Ask(ctx, func(ctx context.Context, client pb.AdminClient) (err error) {
			reply, err = client.Scale(ctx, request)
			return err
		})
		release()
		taken := request.GetParameterServers() == 0
		_, ended := errors.AsType[*EndedError](err)
		_, waits := errors.AsType[*waitError](err)
		switch {
		case err == nil && taken && reply.GetGoal() != n:
			return fmt.Errorf("number of parameter servers: another request has changed it to %d", reply.GetGoal())
		case err == nil:
			if !taken {
				was = reply.GetParameterServers()
			}
			heard, request.ParameterServers = time.Now(), 0
			say(l.progressOf(reply))
		case !taken && waits:
			say("waiting, and nothing is stored yet: " + err.Error())
		case taken && cmd.Context().Err() != nil:
			return l.stoppedWatching(was, n)
		case !taken || ended:
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
			if request.GetParameterServers() != 0 {
				return errors.New("stopped waiting: the number of parameter servers is unchanged")
			}
			return l.stoppedWatching(was, n)
		}
	}
}

// answerTime is the time for the answer to a request after Ctrl-C. Without the answer, it is not known whether the request is stored.
const answerTime = time.Second

// lingering returns a context that ends answerTime after ctx.
func lingering(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(answerTime, cancel) })
	return longer, func() {
		stop()
		cancel()
	}
}

// stoppedWatching returns the error of an interrupted command: the request remains. was is the number of servers at the request.
func (l *Leader) stoppedWatching(was, n uint32) error {
	back := "N, with N the former number"
	if was != n {
		back = fmt.Sprintf("%d %s", was, l.flags())
	}
	return fmt.Errorf("stopped watching: the job continues to move to %s; to undo it: master scale ps=%s", cli.Counted(int(n), "parameter server"), back)
}

// progressOf is a line for a user.
func (l *Leader) progressOf(reply *pb.ScaleReply) string {
	switch {
	case reply.GetDone():
		return "the model is distributed over " + cli.Counted(int(reply.GetParameterServers()), "parameter server")
	case reply.GetWaiting() != "":
		return "waiting: " + l.completed(reply.GetWaiting())
	}
	return movingOf(reply)
}

// completed adds the flags of this job to the command in waiting that starts another server, if they are known.
func (l *Leader) completed(waiting string) string {
	if len(l.location.Etcd.Endpoints) == 0 {
		return waiting
	}
	return strings.ReplaceAll(waiting, psclient.StartAnother, psclient.StartAnotherWith+l.location.Flags()+", and the --checkpoint-dir of the others")
}

// movingOf describes a migration. New servers count as soon as they are registered.
func movingOf(reply *pb.ScaleReply) string {
	text := "moving to " + cli.Counted(int(reply.GetGoal()), "parameter server")
	if reply.GetParameterServers() > reply.GetGoal() {
		text = fmt.Sprintf("moving from %d to %s", reply.GetParameterServers(), cli.Counted(int(reply.GetGoal()), "parameter server"))
	}
	switch {
	case reply.GetSlots() > 0:
		return fmt.Sprintf("%s: %d of %d blocks and %d of %d slots to move", text, reply.GetBlocksLeft(), reply.GetBlocks(), reply.GetSlotsLeft(), reply.GetSlots())
	case reply.GetBlocks() > 0:
		return fmt.Sprintf("%s: %d of %d blocks to move", text, reply.GetBlocksLeft(), reply.GetBlocks())
	}
	return text
}
