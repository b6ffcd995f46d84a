package trainer

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"trainmaster/dataset"
	"trainmaster/internal/grpcserver"
	"trainmaster/master/netrpc/wire"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
	"trainmaster/taskqueue/onwire"
)

// evaluator evaluates the current model on evaluation tasks that the master brings to the trainer.
type evaluator struct {
	files files // of the evaluation in progress
	by    atomic.Pointer[EvaluateFunc]
	one   sync.Mutex    // held during an evaluation
	due   chan struct{} // has a token when a heartbeat must not wait: after an evaluation, or a call of EvaluateBy
	known chan struct{} // closed when the master has this from a heartbeat

	mu       sync.Mutex
	accepted []taskqueue.Token // the newest last
	pending  int               // evaluations that have not ended
}

// EvaluateFunc is [Config.Evaluate] for a program that reads the records itself. It receives the stamps of the files of the task, in the order of their first
// chunk.
type EvaluateFunc func(ctx context.Context, task *taskqueue.Task, stamps []dataset.Stamp) (metrics []byte, err error)

// EvaluateBy sets the function that evaluates the current model, if Config has none. The channel is closed when the master knows it, or has refused the
// session: a request for tasks before ends a round of this trainer. It may be called concurrently with other methods.
func (c *Client) EvaluateBy(f EvaluateFunc) <-chan struct{} {
	if c.evaluator.by.Swap(&f) == nil {
		//guard:heartbeat-says-that-it-evaluates
		c.evaluator.hurry()
	}
	return c.evaluator.known
}

// hurry lets the next heartbeat follow immediately.
func (e *evaluator) hurry() {
	select {
	case e.due <- struct{}{}:
	default:
	}
}

// evaluates reports whether the client evaluates its current model.
func (c *Client) evaluates() bool { return c.config.Evaluate != nil || c.evaluator.by.Load() != nil }

// measure evaluates the current model on a task.
func (c *Client) measure(ctx context.Context, task *taskqueue.Task, stamps []dataset.Stamp) ([]byte, error) {
	if c.config.Evaluate == nil {
		return (*c.evaluator.by.Load())(ctx, task, stamps)
	}
	return c.config.Evaluate(ctx, task, c.evaluator.files.records(task, stamps, 0))
}

// maxAccepted is the number of accepted tasks that the client remembers. The master brings one at a time.
const maxAccepted = 64

// maxPending is the number of accepted tasks that have not ended, with stopped ones. Any client of the port can name tasks.
const maxPending = 4

// accept notes a task. isNew is false if the client has accepted it before.
func (e *evaluator) accept(tok taskqueue.Token) (isNew bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	//guard:evaluation-accepted-once
	if slices.Contains(e.accepted, tok) {
		return false, nil
	}
	//guard:pending-evaluations-limit
	if e.pending >= maxPending {
		return false, status.Errorf(codes.Unavailable, "evaluation: expected at most %d tasks at a time: repeat the call when one has ended", maxPending)
	}
	e.pending++
	e.accepted = append(e.accepted, tok)
	e.accepted = e.accepted[max(0, len(e.accepted)-maxAccepted):]
	return true, nil
}

func (e *evaluator) ended() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pending--
}

// EvaluateCurrentModel implements the service.
func (c *control) EvaluateCurrentModel(_ context.Context, in *pb.TaskSpec) (*pb.EvaluateCurrentModelReply, error) {
	return &pb.EvaluateCurrentModelReply{}, c.client.evaluateCurrent(in)
}

// evaluateCurrent accepts an evaluation task for the current model. The result follows.
func (c *Client) evaluateCurrent(in *pb.TaskSpec) error {
	spec, tok := in.GetEvaluationSpec(), onwire.TokenOf(in.GetToken())
	model := spec.GetModel()
	//guard:evaluation-of-the-own-model
	switch {
	case spec == nil:
		return grpcserver.BadArgument("task", "expected an evaluation task, found %T", in.GetTask())
	case model.GetModelPath() != "" || model.GetTrainerIp() != "":
		return grpcserver.BadArgument("evaluation_spec.model", "expected none, because the trainer evaluates its own model, found %v", model)
	case in.GetToken() == nil || tok.Kind != taskqueue.Evaluation || int64(tok.ID()) != in.GetTaskId():
		return grpcserver.BadArgument("token", "expected the token of evaluation task %d, found %v", in.GetTaskId(), tok)
	case !c.evaluates():
		return status.Error(codes.Unimplemented, "evaluation: expected a trainer with Config.Evaluate, found a trainer without it")
	}
	var reply wire.NextReply
	if err := applyFiles(in, filesOf(spec.GetData()), &reply); err != nil {
		return grpcserver.BadArgument("evaluation_spec.data", "%v", err)
	}
	if isNew, err := c.evaluator.accept(tok); !isNew {
		return err
	}
	c.held.begin(tok)
	c.owned.Go(func() { c.evaluate(&reply.Task, reply.Stamps) })
	return nil
}

// evaluate evaluates the current model on a task, and reports the result.
func (c *Client) evaluate(task *taskqueue.Task, stamps []dataset.Stamp) {
	e := &c.evaluator
	e.one.Lock()
	defer e.one.Unlock()
	defer func() {
		e.ended()
		c.held.end(task.Token)
		e.hurry()
	}()
	running, release := c.UntilStopped(c.ctx, task)
	defer release()
	if running.Err() != nil {
		return
	}
	metrics, err := c.measure(running, task, stamps)
	if running.Err() != nil { // stopped, or the client closes
		return
	}
	if err == nil {
		err = c.reportOutside(taskqueue.Result{Token: task.Token, Metrics: metrics})
	}
	if err == nil || running.Err() != nil {
		return
	}
	failed := taskqueue.Result{Token: task.Token, Error: err.Error()}
	if notFinite, ok := errors.AsType[*NotFiniteError](err); ok {
		failed.NotFinite = notFinite.Metric
	}
	if err := c.reportOutside(failed); err != nil && running.Err() == nil {
		c.config.Log.WithError(err).WithField("task", task.Token.String()).Warn("result of an evaluation refused")
	}
}

// reportOutside reports a result while another request may be in progress. It returns an answer that refuses the result.
func (c *Client) reportOutside(r taskqueue.Result) error {
	c.mu.Lock()
	request := c.session.Outside(r, c.progress)
	c.mu.Unlock()
	_, err := call[wire.NextReply](c.ctx, c.link, "Next", request)
	if errors.Is(err, wire.ErrRejoin) || errors.Is(err, wire.ErrRolledBack) { // about the session: the result is taken
		return nil
	}
	return err
}
