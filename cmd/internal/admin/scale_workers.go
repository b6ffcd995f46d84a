package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
	"trainmaster/cmd/internal/view"
	pb "trainmaster/proto/trainmaster/v1"
)

// ScaleWorkers requests another number of workers once, then the progress until it is complete. It follows the leader.
func ScaleWorkers(cmd *cobra.Command, l *Leader, n uint32) error {
	said := ""
	say := func(line string) {
		if line != said {
			fmt.Fprintln(cmd.OutOrStdout(), line)
			said = line
		}
	}
	was, err := l.scaleWorkers(cmd.Context(), 0)
	if err != nil {
		return err
	}
	stopped := func() error {
		return fmt.Errorf("stopped watching: the job continues to move to %s; to undo it: master scale workers=%d %s", cli.Counted(int(n), "worker"), was.GetWorkers().GetGoal(), l.flags())
	}
	ctx, release := lingering(cmd.Context())
	reply, err := l.scaleWorkers(ctx, n)
	release()
	if err != nil {
		return err
	}
	poll := time.NewTicker(scalePoll)
	defer poll.Stop()
	for heard := time.Now(); ; {
		switch _, ended := errors.AsType[*EndedError](err); {
		case err == nil && reply.GetWorkers().GetGoal() != n:
			return fmt.Errorf("number of workers: another request has changed it to %d", reply.GetWorkers().GetGoal())
		case err == nil:
			heard = time.Now()
			say("workers: " + view.PodGroup(reply.GetWorkers()))
			if reply.GetDone() {
				return nil
			}
		case cmd.Context().Err() != nil:
			return stopped()
		case ended:
			return err
		case time.Since(heard) > scalePatience:
			return fmt.Errorf("request stored; no progress report for %v: %w", scalePatience, err)
		default:
			say("waiting for a leader: " + err.Error())
		}
		select {
		case <-poll.C:
		case <-cmd.Context().Done():
			return stopped()
		}
		reply, err = l.scaleWorkers(cmd.Context(), 0)
	}
}

// scaleWorkers sends one request. 0: only the progress is returned.
func (l *Leader) scaleWorkers(ctx context.Context, n uint32) (reply *pb.ScaleWorkersReply, err error) {
	err = l.Ask(ctx, func(ctx context.Context, client pb.AdminClient) (err error) {
		reply, err = client.ScaleWorkers(ctx, &pb.ScaleWorkersRequest{Job: l.Job, Workers: n})
		return err
	})
	return reply, err
}
