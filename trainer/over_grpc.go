package trainer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"trainmaster/internal/grpcdial"
	"trainmaster/internal/grpcserver"
	"trainmaster/master/netrpc/wire"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
	"trainmaster/trainer/session"
)

// overGRPC is a gRPC connection. Requests for tasks go over a stream of Work, the others are calls.
type overGRPC struct {
	addr string
	conn *grpc.ClientConn
	api  pb.CoordinatorClient

	working sync.Mutex // one request for a task at a time
	work    pb.Coordinator_WorkClient
	endWork context.CancelFunc // of work; nil: no stream is open
	id      uint64             // of the last request on the stream
}

// openGRPC connects with the first call. The link opens another connection if that fails, so this connection does not try again.
func openGRPC(addr string, options []grpc.DialOption) (transport, error) {
	dialing := grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: dialTimeout})
	conn, err := grpcdial.OpenStatic(addr, append([]grpc.DialOption{dialing}, options...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to the master at %q: %w", addr, err)
	}
	return &overGRPC{addr: addr, conn: conn, api: pb.NewCoordinatorClient(conn)}, nil
}

func (o *overGRPC) start(ctx context.Context, method string, request, reply any) <-chan error {
	outcome := make(chan error, 1)
	go func() { outcome <- o.refused(o.call(ctx, method, request, reply)) }()
	return outcome
}

func (o *overGRPC) close() {
	_ = o.conn.Close() // ends the stream
	o.working.Lock()
	defer o.working.Unlock()
	o.dropWork()
}

func (o *overGRPC) dropWork() {
	if o.endWork != nil {
		o.endWork()
		o.endWork, o.work = nil, nil
	}
}

// next makes a request over the stream, in parts with one finish each. An error of the stream ends it, an error in an answer does not.
func (o *overGRPC) next(ctx context.Context, r *wire.NextRequest, reply *wire.NextReply) (err error) {
	parts := session.Parts(r)
	if r.Ack == 0 && !r.Want { // a result outside the order of requests does not wait for them
		return o.callParts(ctx, parts, reply)
	}
	o.working.Lock()
	defer o.working.Unlock()
	//guard:large-metrics-by-call
	if slices.ContainsFunc(r.Finished, func(f taskqueue.Result) bool { return len(f.Metrics) > maxStreamedMetrics }) {
		return o.callParts(ctx, parts, reply)
	}
	if o.work == nil {
		var streaming context.Context
		streaming, o.endWork = context.WithCancel(context.WithoutCancel(ctx))
		// The end of ctx ends the stream: an answer that arrives later is not read.
		stop := context.AfterFunc(ctx, o.endWork)
		o.work, err = o.api.Work(streaming)
		stop()
		o.id = 0
		if err != nil {
			o.dropWork()
			return err
		}
	}
	stop := context.AfterFunc(ctx, o.endWork)
	err = o.exchange(parts, reply)
	stop()
	if ctx.Err() != nil {
		o.dropWork()
	}
	return err
}

// maxStreamedMetrics is the maximum size of metrics in a request on the stream. The master accepts requests of 64 KiB there, and calls of 4 MiB.
const maxStreamedMetrics = 32 << 10

// callParts makes the parts of a request with finishes as calls, in their order.
func (o *overGRPC) callParts(ctx context.Context, parts []*wire.NextRequest, reply *wire.NextReply) error {
	reply.Task.Index = -1
	for _, part := range parts {
		result, err := o.api.PushResult(ctx, workRequest(0, part).GetPushResult())
		if err != nil {
			return err
		}
		if err := applyWorkReply(&pb.WorkReply{Content: &pb.WorkReply_Result{Result: result}}, reply); err != nil {
			return err
		}
	}
	return nil
}

// exchange sends the parts of a request in their order, and applies the answers to reply.
func (o *overGRPC) exchange(parts []*wire.NextRequest, reply *wire.NextReply) error {
	reply.Task.Index = -1
	first := o.id + 1
	for _, part := range parts {
		o.id++
		if err := o.work.Send(workRequest(o.id, part)); err != nil && !errors.Is(err, io.EOF) { // after io.EOF, Recv has the error
			o.dropWork()
			return o.refused(err)
		}
	}
	for id := first; id <= o.id; id++ {
		out, err := o.answer(id)
		if err == nil {
			err = applyWorkReply(out, reply)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// answer returns the answer to a request. It ignores messages that answer no request, and answers after an error.
func (o *overGRPC) answer(id uint64) (*pb.WorkReply, error) {
	for {
		out, err := o.work.Recv()
		if err != nil {
			//guard:ended-stream-dropped
			o.dropWork()
			if errors.Is(err, io.EOF) {
				err = errors.New("the master closed the stream")
			}
			return nil, o.refused(err)
		}
		if out.GetId() == id {
			return out, nil
		}
	}
}

// kinds are the errors of package wire, and of files, by the reasons of gRPC errors. Other reasons are answers without a kind.
var kinds = map[string]error{
	"NOT_LEADER": wire.ErrNotLeader, "STOPPING": wire.ErrNotLeader,
	"NOT_STORED": wire.ErrNotStored, "STORE_FULL": wire.ErrNotStored, "TOO_MANY_SESSIONS": wire.ErrNotStored, "TOO_MANY_LARGE_MESSAGES": wire.ErrNotStored,
	"JOB_FINISHED": wire.ErrJobFinished, "JOB_FAILED": wire.ErrJobFailed, "REJOIN": wire.ErrRejoin, "DRAINED": wire.ErrDrained,
	"OTHER_DATASET": wire.ErrOtherDataset, "ROLLED_BACK_TO_STEP": wire.ErrRolledBack, "OTHER_GENERATION": wire.ErrOtherGeneration,
	"OTHER_STEP": wire.ErrOtherStep, "MEMBER_LOST": wire.ErrMemberLost, "NOT_EXPLICIT": wire.ErrNotExplicit, "NO_FILES": fs.ErrNotExist,
	"DAMAGED_FILE": ErrDamaged, "NOT_RECORDS": ErrFiles, "OUTSIDE_ROOTS": ErrFiles, "UNKNOWN_SCHEME": ErrFiles,
}

// permanent are the codes of a server that knows the call and refuses the request: the same request fails again. This master sends them with
// a reason. Without a reason, they are of a master of another version, and are an answer. A refused caller is not in the list: until the next
// leader is known, another program can have the address of the former leader.
var permanent = map[codes.Code]bool{
	codes.InvalidArgument: true, codes.NotFound: true, codes.AlreadyExists: true, codes.FailedPrecondition: true, codes.OutOfRange: true, codes.DataLoss: true,
}

// refused returns the error of package wire for the error of a call. Other errors mean that there is no answer: the call is repeated.
func (o *overGRPC) refused(err error) error {
	s, isStatus := status.FromError(err)
	if err == nil || !isStatus {
		return err
	}
	reason := grpcserver.Reason(err)
	switch {
	case s.Code() == codes.Canceled || s.Code() == codes.DeadlineExceeded:
		return err
	case reason == "OTHER_JOB": // until the next leader is known, the master of another job can have the address of the former leader
		return fmt.Errorf("%w: %s", ErrOtherJob, strings.TrimPrefix(s.Message(), ErrOtherJob.Error()+": "))
	case reason != "":
		return wire.Refusal(kinds[reason], s.Message())
	// A message that is too large or has bytes that are not text, on either side: a repetition would not help.
	//guard:unencodable-request-answered
	case s.Code() == codes.ResourceExhausted || s.Code() == codes.Internal && strings.Contains(s.Message(), "error while marshaling"):
		return wire.Refusal(nil, s.Message())
	//guard:permanent-error-ends-call
	case permanent[s.Code()], s.Code() == codes.Unimplemented && strings.Contains(s.Message(), "unknown method"):
		return wire.Refusal(nil, fmt.Sprintf("the program at %s refuses the call, expected a master of this version: %v: %s", o.addr, s.Code(), s.Message()))
	case s.Code() == codes.PermissionDenied || s.Code() == codes.Unauthenticated:
		return fmt.Errorf("%w at %s, found a program that refuses this trainer: %w", errNoMaster, o.addr, err)
	case strings.Contains(s.Message(), "unexpected HTTP status code"):
		return fmt.Errorf("%w at %s, found an HTTP server, or a proxy that does not reach a master: %w", errNoMaster, o.addr, err)
	case s.Code() == codes.Unimplemented:
		return fmt.Errorf("%w at %s, found a gRPC server without the service Coordinator", errNoMaster, o.addr)
	case strings.Contains(s.Message(), "authentication handshake failed"):
		return fmt.Errorf("%w at %s, found a program without TLS, or with another certificate: %w", errNoMaster, o.addr, err)
	case strings.Contains(s.Message(), "error reading server preface"):
		return fmt.Errorf("%w at %s, found a program of another protocol: %w", errNoMaster, o.addr, err)
	}
	return err
}
