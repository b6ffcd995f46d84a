package load

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"

	"trainmaster/internal/grpcdial"
	pb "trainmaster/proto/trainmaster/v1"
)

// overGRPC is a trainer with a session, over a gRPC connection of its own.
type overGRPC struct {
	addr, id string
	conn     *grpc.ClientConn
	api      pb.CoordinatorClient
	request  *pb.Request
	held     *pb.Token // nil: none
}

func (t *overGRPC) Join(ctx context.Context) (err error) {
	if t.conn, err = grpcdial.OpenStatic(t.addr); err != nil {
		return err
	}
	t.api = pb.NewCoordinatorClient(t.conn)
	s, err := t.api.Join(ctx, &pb.JoinRequest{Id: t.id})
	if err != nil {
		return err
	}
	t.request = &pb.Request{Session: s.GetSession(), JobId: s.GetJobId()}
	return nil
}

// next returns the next request of the session.
func (t *overGRPC) next() *pb.Request {
	t.request.Seq++
	t.request.Ack = t.request.Seq
	return t.request
}

// take notes the task of an answer.
func (t *overGRPC) take(spec *pb.TaskSpec) {
	t.request.SeenCommit, t.request.SeenProof, t.held = spec.GetCommit(), spec.GetCommitProof(), spec.GetToken()
}

func (t *overGRPC) get(ctx context.Context) error {
	spec, err := t.api.GetTask(ctx, &pb.TrainerInfo{Request: t.next()})
	t.take(spec)
	return err
}

func (t *overGRPC) Leave(ctx context.Context) error {
	_, err := t.api.Leave(ctx, &pb.LeaveRequest{Session: t.request.GetSession()})
	return errors.Join(err, t.conn.Close())
}

func isCounted(reply *pb.PushResultResponse) bool {
	return reply.GetStatus() == pb.PushResultResponse_STATUS_COUNTED
}

// oneCall reports a result and gets the next task with one call.
type oneCall struct{ overGRPC }

// OneCall returns a trainer that calls PushResult with a request for the next task.
func OneCall(addr, id string) Trainer { return &oneCall{overGRPC{addr: addr, id: id}} }

func (t *oneCall) Op(ctx context.Context) (bool, error) {
	if t.held == nil {
		return false, t.get(ctx)
	}
	reply, err := t.api.PushResult(ctx, &pb.TaskResult{Token: t.held, Request: t.next(), Ask: &pb.TrainerInfo{}})
	if err != nil {
		return false, err
	}
	t.take(reply.GetNext())
	return isCounted(reply), nil
}

// twoCalls reports a result with one call, and gets the next task with another.
type twoCalls struct{ overGRPC }

// TwoCalls returns a trainer that calls PushResult and then GetTask.
func TwoCalls(addr, id string) Trainer { return &twoCalls{overGRPC{addr: addr, id: id}} }

func (t *twoCalls) Op(ctx context.Context) (bool, error) {
	if t.held == nil {
		return false, t.get(ctx)
	}
	reply, err := t.api.PushResult(ctx, &pb.TaskResult{Token: t.held, Request: t.next()})
	if err != nil {
		return false, err
	}
	return isCounted(reply), t.get(ctx)
}

// streamed has one request in progress on a stream.
type streamed struct {
	overGRPC
	stream pb.Coordinator_WorkClient
	id     uint64
}

// Streamed returns a trainer that sends its requests on a stream of Work.
func Streamed(addr, id string) Trainer {
	return &streamed{overGRPC: overGRPC{addr: addr, id: id}}
}

func (t *streamed) Join(ctx context.Context) (err error) {
	if err := t.overGRPC.Join(ctx); err != nil {
		return err
	}
	t.stream, err = t.api.Work(ctx)
	return err
}

func (t *streamed) Op(context.Context) (bool, error) {
	t.id++
	in := &pb.WorkRequest{Id: t.id, Call: &pb.WorkRequest_GetTask{GetTask: &pb.TrainerInfo{Request: t.request}}}
	if t.held != nil {
		in.Call = &pb.WorkRequest_PushResult{PushResult: &pb.TaskResult{Token: t.held, Request: t.request, Ask: &pb.TrainerInfo{}}}
	}
	t.next()
	if err := t.stream.Send(in); err != nil {
		return false, err
	}
	out, err := t.stream.Recv()
	switch {
	case err != nil:
		return false, err
	case out.GetId() != t.id || out.GetError() != nil:
		return false, fmt.Errorf("expected the answer to request %d, found %v", t.id, out)
	case out.GetTask() != nil:
		t.take(out.GetTask())
		return false, nil
	}
	t.take(out.GetResult().GetNext())
	return isCounted(out.GetResult()), nil
}

func (t *streamed) Leave(ctx context.Context) error {
	return errors.Join(t.stream.CloseSend(), t.overGRPC.Leave(ctx))
}
