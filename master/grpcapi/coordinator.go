package grpcapi

import (
	"cmp"
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/protobuf/proto"

	"trainmaster/internal/largemsg"
	"trainmaster/master"
	"trainmaster/master/evaluation"
	"trainmaster/master/evaluation/metric"
	"trainmaster/master/trainercontrol"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
	"trainmaster/taskqueue/onwire"
)

// coordinator implements the service Coordinator.
type coordinator struct {
	pb.UnimplementedCoordinatorServer
	master *master.Master
	log    *logrus.Entry
	// dataProxy is where trainers read the records; "": from the files.
	dataProxy string
	streams   *sync.WaitGroup // of the goroutines that receive from Work
}

// GetTask implements the service.
func (c *coordinator) GetTask(ctx context.Context, in *pb.TrainerInfo) (*pb.TaskSpec, error) {
	if err := checkLists(in, nil, nil); err != nil {
		return nil, err
	}
	if in.GetRequest() != nil {
		ev, err := requestOf(in.GetRequest(), in, finishesOf(in.GetRequest()))
		if err != nil {
			return nil, err
		}
		reply, err := c.master.Next(ctx, ev)
		connectionOf(ctx).observe(ev.Trainer, ev.Incarnation, err)
		return c.taskSpec(reply, len(ev.Held) == 0, err)
	}
	ev := &taskqueue.PlainAsk{Want: true, Accepts: kindsOf(in.GetAccepts())}
	reply, err := c.plain(ctx, in.GetTrainerId(), ev, nil)
	return c.taskSpec(reply, true, err)
}

// PushResult implements the service.
func (c *coordinator) PushResult(ctx context.Context, in *pb.TaskResult) (*pb.PushResultResponse, error) {
	if err := checkLists(in.GetAsk(), in.GetRequest(), in); err != nil {
		return nil, err
	}
	if err := checkResult(in); err != nil {
		return nil, err
	}
	metrics, err := metricsOf(in)
	if err != nil {
		return nil, c.refuseMetric(ctx, in, err)
	}
	result := taskqueue.Result{
		Token: tokenOf(in.GetToken()), Error: in.GetError(), Step: in.GetStep(), Metrics: metrics, NotFinite: in.GetNotFiniteMetric(),
		Model: taskqueue.Model{Path: in.GetModelPath(), Version: uint64(max(in.GetModelId(), 0))}, Stats: statsOf(in.GetStat()),
		Kept: in.GetKeptModel(),
	}
	if c.log.Logger.IsLevelEnabled(logrus.DebugLevel) {
		c.log.WithFields(logrus.Fields{"task": in.GetTaskId(), "model": in.GetModelId(), "path": in.GetModelPath(), "loss": in.GetLoss(), "accuracy": in.GetAccuracy(), "stat": in.GetStat()}).Debug("result of a task")
	}
	ask := in.GetAsk()
	//guard:large-result-does-not-wait
	if proto.Size(in) > largemsg.MaxShort {
		ask = nil // a waiting trainer would keep its memory
	}
	in.Metrics = nil // which take eight times the size of their message: they are encoded
	if in.GetRequest() != nil {
		ev, err := requestOf(in.GetRequest(), ask, append([]taskqueue.Result{result}, finishesOf(in.GetRequest())...))
		if err != nil {
			return nil, err
		}
		reply, err := c.master.Next(ctx, ev)
		connectionOf(ctx).observe(ev.Trainer, ev.Incarnation, err)
		return c.resultReply(in, ask, reply, len(ev.Held) == 0, err)
	}
	ev := &taskqueue.PlainAsk{
		Finished: true, Task: taskqueue.TaskID(in.GetTaskId()), Result: result,
		Want: ask != nil, Accepts: kindsOf(ask.GetAccepts()),
	}
	if ask == nil { // the number of the task is enough: the result does not name its trainer, and must not wait for a call of another one
		//guard:result-waits-for-no-trainer
		reply, err := c.master.PlainAsk(ctx, ev)
		return c.resultReply(in, ask, reply, true, err)
	}
	reply, err := c.plain(ctx, ask.GetTrainerId(), ev, in)
	return c.resultReply(in, ask, reply, true, err)
}

// resultReply translates the answer to a result. ask is the part of the result that was followed, and longPolled that of taskSpec.
func (c *coordinator) resultReply(in *pb.TaskResult, ask *pb.TrainerInfo, reply master.Reply, longPolled bool, err error) (*pb.PushResultResponse, error) {
	if len(reply.Finishes) == 0 && err != nil {
		return nil, err
	}
	out := &pb.PushResultResponse{Status: resultStatuses[reply.Finishes[0]]}
	switch {
	case ask != nil:
		if out.Next, err = c.taskSpec(reply, longPolled, err); err != nil {
			return nil, err
		}
	case in.GetAsk() != nil:
		out.Next = &pb.TaskSpec{Task: &pb.TaskSpec_Wait{Wait: &pb.WaitTaskSpec{Reason: pb.WaitTaskSpec_REASON_NO_TASK}}}
	}
	return out, nil
}

var resultStatuses = map[taskqueue.FinishStatus]pb.PushResultResponse_Status{
	taskqueue.Counted: pb.PushResultResponse_STATUS_COUNTED, taskqueue.AlreadyCounted: pb.PushResultResponse_STATUS_ALREADY_COUNTED,
	taskqueue.Stale: pb.PushResultResponse_STATUS_STALE, taskqueue.Returned: pb.PushResultResponse_STATUS_RETURNED,
}

// maxAccepts is more than there are kinds of tasks.
const maxAccepts = 8

// checkLists refuses long lists: a list of small messages takes many times its size in memory while its request waits.
func checkLists(info *pb.TrainerInfo, request *pb.Request, result *pb.TaskResult) error {
	for _, r := range []*pb.Request{request, info.GetRequest()} {
		//guard:work-request-lists-limit
		if n := len(r.GetHeld()); n > master.MaxHeld {
			return badArgument("request.held", "expected at most %d tasks, found %d", master.MaxHeld, n)
		}
		//guard:work-request-finishes-limit
		if n := len(r.GetFinished()); n >= master.MaxFinished {
			return badArgument("request.finished", "expected at most %d tasks, found %d", master.MaxFinished-1, n)
		}
	}
	//guard:accepted-kinds-limit
	if n := len(info.GetAccepts()); n > maxAccepts {
		return badArgument("accepts", "expected at most %d kinds of tasks, found %d", maxAccepts, n)
	}
	//guard:listed-metrics-limit
	if n := len(result.GetMetrics()); n > metric.MaxMetrics {
		return badArgument("metrics", "expected at most %d, found %d", metric.MaxMetrics, n)
	}
	return nil
}

// checkResult refuses numbers that no training gives, and a result that names no task.
func checkResult(in *pb.TaskResult) error {
	for field, v := range map[string]float64{
		"stat.seconds":     in.GetStat().GetSeconds(),
		"stat.cpu_seconds": in.GetStat().GetCpuSeconds(), "stat.gpu_utilization": in.GetStat().GetGpuUtilization(),
	} {
		//guard:result-finite
		if isNotFinite(v) {
			return badArgument(field, "expected a finite number, found %v", v)
		}
	}
	if n := in.GetStat().GetRecords(); n < 0 {
		return badArgument("stat.records", "expected 0 or more, found %d", n)
	}
	if n := len(in.GetModelPath()); n > taskqueue.MaxModelPath {
		return badArgument("model_path", "expected at most %d bytes, found %d", taskqueue.MaxModelPath, n)
	}
	switch {
	case in.GetRequest() != nil && in.GetToken() == nil:
		return badArgument("token", "expected the token of the task, because the request is of a session")
	case in.GetRequest() == nil && in.GetTaskId() <= 0:
		return badArgument("task_id", "expected the number of a task, found %d", in.GetTaskId())
	}
	return nil
}

// plain makes a call of a trainer without a session, after its calls before, and completes its event. result is its result, nil if it
// reports none.
func (c *coordinator) plain(ctx context.Context, id int32, ev *taskqueue.PlainAsk, result *pb.TaskResult) (reply master.Reply, err error) {
	t, err := connectionOf(ctx).trainer(id)
	if err != nil {
		return reply, err
	}
	if err := t.begin(ctx); err != nil {
		return reply, err
	}
	defer func() { t.done(reply) }()
	if result != nil && result.GetError() == "" {
		t.progress = taskqueue.Progress{Records: t.progress.Records + result.GetStat().GetRecords(), Loss: result.GetLoss()}
	}
	ev.Connection, ev.Trainer, ev.Incarnation, ev.Again, ev.Progress = t.name, t.ordinal, t.incarnation, true, t.progress
	return c.master.PlainAsk(ctx, ev)
}

// requestOf returns the event of a request of a trainer with a session. info is nil if it wants no task.
func requestOf(in *pb.Request, info *pb.TrainerInfo, results []taskqueue.Result) (*taskqueue.Request, error) {
	if in.GetSeq() == 0 {
		return nil, badArgument("request.seq", "expected request numbers from 1, found 0")
	}
	ev := &taskqueue.Request{
		Trainer: taskqueue.Ordinal(in.GetSession().GetOrdinal()), Incarnation: in.GetSession().GetIncarnation(), Seq: in.GetSeq(), Ack: in.GetAck(),
		Held: tokensOf(in.GetHeld()), Finished: results, Want: info != nil, Most: int(min(in.GetMost(), taskqueue.MaxAnswered)), Accepts: kindsOf(info.GetAccepts()),
		SeenCommit: in.GetSeenCommit(), SeenProof: in.GetSeenProof(), Epoch: in.GetEpoch(), Progress: progressOf(in.GetProgress()),
	}
	copy(ev.JobID[:], in.GetJobId())
	return ev, nil
}

// finishesOf returns the results of a request in addition to its TaskResult.
func finishesOf(in *pb.Request) (results []taskqueue.Result) {
	for _, f := range in.GetFinished() {
		results = append(results, taskqueue.Result{Token: tokenOf(f.GetToken()), Error: f.GetError(), Step: f.GetStep()})
	}
	return results
}

// prefetchPause is the time until a trainer that holds a task asks for another one again.
const prefetchPause = time.Second

// taskSpec translates the answer to a request for a task. longPolled reports that the master holds the answer back until there is a task.
// The end of the job is an answer.
func (c *coordinator) taskSpec(r master.Reply, longPolled bool, err error) (*pb.TaskSpec, error) {
	spec := &pb.TaskSpec{Commit: r.Commit, CommitProof: r.CommitProof}
	switch {
	case errors.Is(err, master.ErrJobFinished), errors.Is(err, master.ErrJobFailed):
		spec.Task = &pb.TaskSpec_End{End: endSpec(err)}
		return spec, nil
	case err != nil:
		return nil, err
	case r.Assignment == nil:
		wait := &pb.WaitTaskSpec{Reason: waitReasons[r.WaitFor]}
		if !longPolled {
			wait.RetryAfter = prefetchPause.Seconds()
		}
		spec.Task = &pb.TaskSpec_Wait{Wait: wait}
		return spec, nil
	}
	c.describe(spec, r.Assignment)
	for _, more := range r.More {
		further := &pb.TaskSpec{}
		c.describe(further, more)
		spec.More = append(spec.More, further)
	}
	return spec, nil
}

// describe sets the fields of a task.
func (c *coordinator) describe(spec *pb.TaskSpec, a *master.Assignment) {
	token := a.Task.Token
	spec.TaskId, spec.Token, spec.Base = int64(token.ID()), tokenToProto(token), a.Base
	spec.Index = int64(a.Task.Index)
	data := onwire.Data(onwire.Files(a.Ranges(), a.Task.Chunks), c.dataProxy)
	switch token.Kind {
	case taskqueue.Evaluation:
		spec.Task = &pb.TaskSpec_EvaluationSpec{EvaluationSpec: onwire.EvaluationTask(a.Round, data)}
	case taskqueue.Prediction:
		spec.Task = &pb.TaskSpec_PredictionSpec{PredictionSpec: &pb.PredictionTaskSpec{Data: data}}
	default:
		spec.Task = &pb.TaskSpec_TrainingTask{TrainingTask: &pb.TrainingTaskSpec{
			Model: modelSpec(a.From), Data: data, HyperParameter: hyperParameter(a.HyperParameters),
		}}
	}
}

// modelSpec translates the model that a training task begins with; nil: the own model of the trainer.
func modelSpec(from taskqueue.ModelSource) *pb.ModelSpec {
	if from == (taskqueue.ModelSource{}) {
		return nil
	}
	return &pb.ModelSpec{ModelPath: from.Path, TrainerIp: from.Address, TrainerId: int32(from.Ordinal)}
}

// hyperParameter translates the hyper-parameters of a task; nil: the job has none.
func hyperParameter(values map[string]float64) *pb.HyperParameter {
	if len(values) == 0 {
		return nil
	}
	out := &pb.HyperParameter{Values: make(map[string]*pb.HyperParameter_Value, len(values))}
	for name, v := range values {
		out.Values[name] = &pb.HyperParameter_Value{Value: &pb.HyperParameter_Value_Number{Number: v}}
	}
	return out
}

// statsOf translates the statistics of a result.
func statsOf(in *pb.RunStats) taskqueue.RunStats {
	return taskqueue.RunStats{Records: in.GetRecords(), Seconds: in.GetSeconds(), PeakMemory: in.GetPeakMemoryBytes(), GPUUtilization: in.GetGpuUtilization()}
}

// endSpec translates the end of a job. A decision about an evaluation round has its name before its reason.
func endSpec(err error) *pb.EndTaskSpec {
	end := &pb.EndTaskSpec{Reason: pb.EndTaskSpec_REASON_PASSES_DONE}
	kind := master.ErrJobFinished
	if errors.Is(err, master.ErrJobFailed) {
		kind, end.Reason, end.Text = master.ErrJobFailed, pb.EndTaskSpec_REASON_FAILED, err.Error()
	}
	cause, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), kind.Error()+": "), ":")
	//guard:reason-of-the-end
	if reason, ok := endReasons[cause]; ok {
		end.Reason = reason
	}
	if err.Error() != kind.Error()+": "+master.PassesDone {
		end.Text = err.Error()
	}
	return end
}

var endReasons = map[string]pb.EndTaskSpec_Reason{
	string(evaluation.TargetReached): pb.EndTaskSpec_REASON_TARGET_REACHED, string(evaluation.NoProgress): pb.EndTaskSpec_REASON_NO_PROGRESS,
	string(evaluation.Diverged): pb.EndTaskSpec_REASON_DIVERGED, taskqueue.StoppedByStrategy: pb.EndTaskSpec_REASON_STOPPED,
}

var waitReasons = map[taskqueue.WaitFor]pb.WaitTaskSpec_Reason{
	taskqueue.WaitTask: pb.WaitTaskSpec_REASON_NO_TASK, taskqueue.WaitCommit: pb.WaitTaskSpec_REASON_COMMIT,
	taskqueue.WaitRollback: pb.WaitTaskSpec_REASON_ROLLBACK, taskqueue.WaitCut: pb.WaitTaskSpec_REASON_CUT,
	taskqueue.WaitDrain: pb.WaitTaskSpec_REASON_DRAIN,
}

// Join implements the service.
func (c *coordinator) Join(ctx context.Context, in *pb.JoinRequest) (*pb.JoinReply, error) {
	if err := checkJob(c.master, in.GetJob()); err != nil {
		return nil, err
	}
	s, err := c.master.JoinAs(ctx, master.Joining{ID: in.GetId(), Address: in.GetAddress(), Control: in.GetControlAddress(), Peer: connectionOf(ctx).peer, Window: int(min(in.GetWindow(), taskqueue.MaxWindow))})
	if err != nil {
		return nil, err
	}
	connectionOf(ctx).observe(s.Ordinal, s.Incarnation, nil)
	return &pb.JoinReply{
		Session: &pb.Session{Ordinal: uint32(s.Ordinal), Incarnation: s.Incarnation}, JobId: s.JobID[:],
		Synchronous: s.Sync, ExplicitCommits: s.Explicit, Cuts: s.Cuts, Epoch: s.Epoch, SessionTtl: cmp.Or(s.TTL, taskqueue.DefaultSessionTTL).Seconds(),
		Window: uint32(s.Window),
	}, nil
}

// Heartbeat implements the service.
func (c *coordinator) Heartbeat(ctx context.Context, in *pb.HeartbeatRequest) (*pb.HeartbeatReply, error) {
	o, incarnation := sessionOf(in)
	orders, err := c.master.Heartbeat(ctx, &taskqueue.Heartbeat{
		Trainer: o, Incarnation: incarnation, Moving: tokensOf(in.GetMoving()), Held: tokensOf(in.GetHeld()), Progress: progressOf(in.GetProgress()), Evaluates: in.GetEvaluates(),
	})
	connectionOf(ctx).observe(o, incarnation, err)
	reply := &pb.HeartbeatReply{Draining: orders.Draining}
	for _, tok := range orders.Stops {
		reply.Commands = append(reply.Commands, commandToProto(trainercontrol.Command{Stop: tok}))
	}
	for _, tok := range orders.Late {
		reply.Commands = append(reply.Commands, commandToProto(trainercontrol.Command{Progress: tok}))
	}
	if orders.Evaluate != nil {
		task, err := c.taskSpec(master.Reply{Assignment: orders.Evaluate}, true, nil)
		if err != nil {
			return nil, err
		}
		reply.Commands = append(reply.Commands, &pb.Command{Command: &pb.Command_EvaluateCurrentModel{EvaluateCurrentModel: task}})
	}
	return reply, err
}

// commandToProto returns the message of a command.
func commandToProto(c trainercontrol.Command) *pb.Command {
	if !c.Stop.IsZero() {
		return &pb.Command{Command: &pb.Command_StopTask{StopTask: onwire.StopTask(c.Stop)}}
	}
	return &pb.Command{Command: &pb.Command_ReportProgress{ReportProgress: &pb.ReportProgressRequest{TaskId: int64(c.Progress.ID()), Token: tokenToProto(c.Progress)}}}
}

// Leave implements the service.
func (c *coordinator) Leave(ctx context.Context, in *pb.LeaveRequest) (*pb.LeaveReply, error) {
	o, incarnation := sessionOf(in)
	leave := c.master.Leave
	if in.GetLost() {
		leave = c.master.Lost
	}
	err := leave(ctx, o, incarnation)
	connectionOf(ctx).left(o)
	return &pb.LeaveReply{}, err
}

// ReportDataset implements the service.
func (c *coordinator) ReportDataset(ctx context.Context, in *pb.ReportDatasetRequest) (*pb.ReportDatasetReply, error) {
	return &pb.ReportDatasetReply{}, c.master.ReportDataset(ctx, in.GetPaths())
}

// SaveModel implements the service.
func (c *coordinator) SaveModel(ctx context.Context, in *pb.SaveModelRequest) (*pb.SaveModelReply, error) {
	o, incarnation := sessionOf(in)
	elected, err := c.master.SaveModel(ctx, o, incarnation)
	return &pb.SaveModelReply{Elected: elected}, err
}

// Staged implements the service.
func (c *coordinator) Staged(ctx context.Context, in *pb.StagedRequest) (*pb.StagedReply, error) {
	if in.GetRecords() > math.MaxInt32 {
		return nil, badArgument("records", "expected at most %d, found %d", math.MaxInt32, in.GetRecords())
	}
	o, incarnation := sessionOf(in)
	committed, included, err := c.master.Staged(ctx, o, incarnation, in.GetVersion(), int(in.GetRecords()), in.GetEpoch())
	return &pb.StagedReply{Committed: committed, Included: included}, err
}
