// Package trainerclient implements the calls of the leader to trainers that serve the gRPC service TrainerControl.
//
// A connection goes to the given IP address and port and to no other: names are not resolved, and proxies of the environment and
// settings of a name service do not apply. Each call has its own connection, because calls to a trainer are rare.
package trainerclient

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"trainmaster/internal/grpcdial"
	"trainmaster/master/trainercontrol"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
	"trainmaster/taskqueue/onwire"
)

// Client calls trainers. The zero value is ready.
type Client struct {
	DataProxy string // address of the data proxy in the tasks; "": trainers read files
}

// maxReply is the size of the largest reply: all replies are short.
const maxReply = 64 << 10

// Stop asks the trainer at "ip:port" to give up a dispatch of a task.
func (Client) Stop(ctx context.Context, address string, task taskqueue.Token) error {
	return call(ctx, address, func(trainer pb.TrainerControlClient) error {
		_, err := trainer.StopTask(ctx, onwire.StopTask(task))
		return err
	})
}

// Progress returns the task that the trainer at "ip:port" works on, 0 if there is none, and the number of its steps.
func (Client) Progress(ctx context.Context, address string) (task taskqueue.TaskID, iteration int64, err error) {
	err = call(ctx, address, func(trainer pb.TrainerControlClient) error {
		p, err := trainer.GetProgress(ctx, &pb.GetProgressRequest{})
		task, iteration = taskqueue.TaskID(p.GetTaskId()), p.GetIteration()
		return err
	})
	return task, iteration, err
}

// Evaluate asks the trainer at "ip:port" to evaluate its own model on the data of a task.
func (c Client) Evaluate(ctx context.Context, address string, task trainercontrol.Task) error {
	spec := &pb.TaskSpec{TaskId: int64(task.Token.ID()), Token: onwire.Token(task.Token), Index: int64(task.Index), Task: &pb.TaskSpec_EvaluationSpec{
		EvaluationSpec: onwire.EvaluationTask(&task.Round, onwire.Data(onwire.Files(task.Ranges, task.Chunks), c.DataProxy)),
	}}
	return call(ctx, address, func(trainer pb.TrainerControlClient) error {
		_, err := trainer.EvaluateCurrentModel(ctx, spec)
		switch status.Code(err) {
		case codes.InvalidArgument, codes.Unimplemented, codes.FailedPrecondition, codes.NotFound, codes.PermissionDenied, codes.Unauthenticated, codes.OutOfRange, codes.ResourceExhausted:
			return fmt.Errorf("%w: %w", trainercontrol.ErrRefused, err)
		}
		return err
	})
}

func call(ctx context.Context, address string, method func(pb.TrainerControlClient) error) error {
	//guard:control-dials-ip-only
	if _, err := netip.ParseAddrPort(address); err != nil {
		return fmt.Errorf("trainer control address %q: expected ip:port: %w", address, err)
	}
	conn, err := grpcdial.Open(address, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxReply)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}))
	if err != nil {
		return err
	}
	defer conn.Close()
	return method(pb.NewTrainerControlClient(conn))
}
