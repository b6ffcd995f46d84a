package grpcapi

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"trainmaster/master"
	"trainmaster/master/pscontrol"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

// readTimeout bounds a call of this service, whatever deadline its client has.
const readTimeout = 10 * time.Second

// detailsAtOnce is how many details of set-aside tasks are read from etcd side by side.
const detailsAtOnce = 16

// admin is the service Admin.
type admin struct {
	pb.UnimplementedAdminServer
	master *master.Master
	speed  *master.Speedometer
	began  time.Time
}

// names refuses a call that is about another job.
func (a *admin) names(job string) error { return checkJob(a.master, job) }

// checkJob returns an error if a request names another job than the master's.
func checkJob(m *master.Master, job string) error {
	if have := m.Job(); job != "" && job != have {
		return fmt.Errorf("%w: expected %q, which this master serves, found %q", errOtherJob, have, job)
	}
	return nil
}

// Status sums the job up.
func (a *admin) Status(ctx context.Context, req *pb.StatusRequest) (*pb.StatusReply, error) {
	if err := a.names(req.GetJob()); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	s, err := a.master.Status(ctx)
	if err != nil {
		return nil, err
	}
	reply := StatusReply(&s.Overview)
	reply.LeaderAddress, reply.Term = s.Leader, s.Term
	reply.Totals = &pb.JobTotals{Trainers: uint32(len(s.Trainers)), Commits: uint64(s.Commits), CommitsRefused: uint64(s.Refused), UptimeSeconds: time.Since(a.began).Seconds()}
	if c := s.Checkpoint; c != nil {
		reply.Checkpoint = &pb.CheckpointStatus{Set: c.Set, AgeSeconds: c.Age.Seconds(), Failure: c.Failure}
	}
	if l := s.Ledger; l != nil {
		reply.Ledger = &pb.LedgerStatus{Sealed: l.Sealed, Bytes: uint64(l.Bytes), Failure: l.Failure, Directory: l.Dir, HangSeconds: l.Hangs.Seconds()}
	}
	if r := s.Registration; r.Step != "" {
		reply.Registration = &pb.Registration{Step: r.Step, Done: uint64(r.Done), Total: uint64(r.Total)}
	}
	servers, err := a.master.Servers(ctx)
	if err != nil {
		return nil, err
	}
	reply.ParameterServers, reply.Refusal, reply.RingWaits = parameterServers(servers), s.Refusal, a.ringWaits()
	if s, err := a.master.Pods(); err == nil { // the master creates them
		for _, g := range s.Groups {
			reply.Pods = append(reply.Pods, podGroup(&g))
		}
	}
	a.speed.Observe(time.Now(), s)
	records, perSecond, loss, reported := a.speed.Total(s.Trainers)
	reply.Totals.RecordsTrained, reply.Totals.RecordsPerSecond = uint64(records), perSecond
	if reported {
		reply.Totals.MeanLoss = &loss
	}
	return reply, nil
}

// parameterServers is nil of a job that has none.
func parameterServers(s pscontrol.Status) *pb.ParameterServers {
	if s.Wanted == 0 {
		return nil
	}
	p := &pb.ParameterServers{
		Wanted: uint32(s.Wanted), Present: uint32(s.Present), MovingTo: uint32(s.MovingTo), PlacementEpoch: s.Placement, Waiting: s.Waiting, Unknown: s.Unknown, Overflow: s.Overflow, Unrestored: s.Unrestored,
	}
	for _, index := range s.Missing {
		p.Missing = append(p.Missing, uint32(index))
	}
	return p
}

// StatusReply converts the state of a job, with or without a leader.
func StatusReply(v *taskqueue.Overview) *pb.StatusReply {
	reply := &pb.StatusReply{Job: v.Job, Status: statuses[v.Status], Reason: v.Reason, Epoch: v.Epoch, Commit: v.Commit}
	if v.LearningRate.Number > 0 {
		reply.LearningRate = learningRate(v.LearningRate)
	}
	reply.Strategy, reply.Population = strategyStatus(v.Strategy), populationStatus(v.Population)
	for i, d := range v.Sets {
		reply.Datasets = append(reply.Datasets, datasetStatus(i, &d))
	}
	if p := v.Steps; v.Explicit {
		reply.Steps = &pb.Steps{Committed: p.Step, Generation: p.Generation, Uncommitted: uint64(p.Uncommitted)}
	}
	return reply
}

// strategyStatus is nil of a job that has no strategy.
func strategyStatus(o *taskqueue.StrategyOverview) *pb.StrategyStatus {
	if o == nil {
		return nil
	}
	s := &pb.StrategyStatus{}
	for _, p := range o.Parameters {
		s.Parameters = append(s.Parameters, &pb.HyperParameterStatus{Name: p.Name, Value: p.Value, Reason: p.Reason})
	}
	for _, d := range o.Decisions {
		s.Decisions = append(s.Decisions, &pb.StrategyDecision{
			Parameter: d.Parameter, Value: d.Value, Reason: d.Reason, Step: d.Step, Passes: d.Passes, JobSeconds: float64(d.Clock) / 1000,
		})
	}
	return s
}

// populationStatus is nil of a job that has no population.
func populationStatus(o *taskqueue.PopulationOverview) *pb.PopulationStatus {
	if o == nil {
		return nil
	}
	s := &pb.PopulationStatus{Generation: o.Generation, Open: o.Open, Figure: o.Figure}
	for _, m := range o.Members {
		s.Members = append(s.Members, &pb.PopulationMember{
			Trainer: m.Trainer, Values: m.Values, Figure: m.Figure, FigureGeneration: m.FigureGeneration, From: m.From, FromGeneration: m.FromGeneration, Next: m.Next, Note: m.Note,
		})
	}
	for _, d := range o.Decisions {
		s.Decisions = append(s.Decisions, &pb.PopulationDecision{
			Generation: d.Generation, Trainer: d.Trainer, From: d.From, Reason: d.Reason, JobSeconds: float64(d.Clock) / 1000,
		})
	}
	return s
}

var statuses = map[taskqueue.Status]pb.JobStatus{
	taskqueue.Running: pb.JobStatus_JOB_STATUS_RUNNING,
	taskqueue.Paused:  pb.JobStatus_JOB_STATUS_PAUSED,
	taskqueue.Ended:   pb.JobStatus_JOB_STATUS_ENDED,
	taskqueue.Failed:  pb.JobStatus_JOB_STATUS_FAILED,
}

var kinds = map[taskqueue.Kind]pb.TaskKind{
	taskqueue.Training:   pb.TaskKind_TASK_KIND_TRAINING,
	taskqueue.Evaluation: pb.TaskKind_TASK_KIND_EVALUATION,
	taskqueue.Prediction: pb.TaskKind_TASK_KIND_PREDICTION,
}

func datasetStatus(number int, d *taskqueue.SetOverview) *pb.DatasetStatus {
	return &pb.DatasetStatus{
		Dataset: uint32(number), Name: d.Name, Weight: uint32(d.Weight), Kind: kinds[d.Kind], Digest: d.Digest[:], Pass: uint32(d.Pass), Passes: uint32(d.Passes),
		Tasks: uint64(d.Tasks), Todo: uint64(d.Todo), Pending: uint64(d.Pending), Retry: uint64(d.Retry), Done: uint64(d.Done),
		SetAside: uint64(d.SetAside), Cursor: uint64(d.Cursor), Chunks: uint64(d.Chunks), Records: uint64(d.Records),
		ChunksPerTask: uint32(d.ChunksPerTask), AverageTaskSeconds: d.AverageTask.Seconds(), TimeoutSeconds: d.Timeout.Seconds(),
		Uncommitted: uint64(d.Uncommitted), Online: d.Online, Closed: d.Closed,
	}
}

// ListTasks lists what is dispatched, to be dispatched again, or set aside.
func (a *admin) ListTasks(ctx context.Context, req *pb.ListTasksRequest) (*pb.ListTasksReply, error) {
	if err := a.names(req.GetJob()); err != nil {
		return nil, err
	}
	for _, state := range req.GetStates() {
		if _, known := pb.TaskState_name[int32(state)]; !known || state == pb.TaskState_TASK_STATE_UNSPECIFIED {
			return nil, badArgument("states", "expected PENDING, RETRY or SET_ASIDE, found %v", state)
		}
	}
	p, err := newPage[*pb.TaskEntry](req.GetPageSize(), req.GetPageToken())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	tasks, err := a.master.Tasks(ctx)
	if err != nil {
		return nil, err
	}
	wanted := func(state pb.TaskState) bool {
		return len(req.GetStates()) == 0 || slices.Contains(req.GetStates(), state)
	}
	for _, t := range tasks.Live {
		if entry := liveTask(&t); wanted(entry.State) {
			p.add(pageCursor{listLive, uint64(t.Set), uint64(t.Token.Pass), uint64(t.Token.Position)}, entry)
		}
	}
	if wanted(pb.TaskState_TASK_STATE_SET_ASIDE) {
		for _, t := range tasks.SetAside {
			entry := &pb.TaskEntry{Dataset: uint32(t.Set), Index: uint64(t.Index), State: pb.TaskState_TASK_STATE_SET_ASIDE, Dropped: t.Dropped}
			p.add(pageCursor{listSetAside, uint64(t.Set), 0, uint64(t.Index)}, entry)
		}
	}
	if err := a.fillDetails(ctx, p.entries); err != nil {
		return nil, err
	}
	return &pb.ListTasksReply{Tasks: p.entries, NextPageToken: p.next()}, nil
}

// The parts of the list of tasks, in their order.
const (
	listLive = iota
	listSetAside
)

func liveTask(t *taskqueue.PendingTask) *pb.TaskEntry {
	entry := &pb.TaskEntry{
		Dataset: uint32(t.Set), Index: uint64(t.Index), State: pb.TaskState_TASK_STATE_RETRY, Pass: uint32(t.Token.Pass),
		Position: uint64(t.Token.Position), Attempt: uint32(t.Token.Attempt), Failures: uint32(t.Failures), Losses: uint32(t.Losses),
	}
	for _, h := range t.Holders {
		entry.State = pb.TaskState_TASK_STATE_PENDING
		entry.Holders = append(entry.Holders, &pb.TaskHolder{
			Trainer: h.Trainer, Attempt: uint32(h.Attempt), AgeSeconds: h.Age.Seconds(), Prefetched: h.Prefetched,
		})
	}
	return entry
}

// fillDetails reads the reasons of the set-aside entries. A task that is no longer set aside keeps its entry without
// details: it was set aside when the list was made.
func (a *admin) fillDetails(ctx context.Context, entries []*pb.TaskEntry) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(detailsAtOnce)
	for _, entry := range entries {
		if entry.State != pb.TaskState_TASK_STATE_SET_ASIDE {
			continue
		}
		group.Go(func() error {
			d, found, err := a.master.AsideDetail(ctx, master.SetAsideTask{Set: int(entry.Dataset), Index: int(entry.Index)})
			if err != nil || !found {
				return err
			}
			entry.Pass, entry.Failures, entry.Losses = uint32(d.Pass), uint32(d.Failures), uint32(d.Losses)
			entry.LastHolder, entry.LastError = d.Holder, d.Error
			return nil
		})
	}
	return group.Wait()
}

// ListTrainers lists the sessions.
func (a *admin) ListTrainers(ctx context.Context, req *pb.ListTrainersRequest) (*pb.ListTrainersReply, error) {
	if err := a.names(req.GetJob()); err != nil {
		return nil, err
	}
	p, err := newPage[*pb.TrainerEntry](req.GetPageSize(), req.GetPageToken())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	s, err := a.master.Status(ctx)
	if err != nil {
		return nil, err
	}
	a.speed.Observe(time.Now(), s)
	for _, t := range s.Trainers {
		p.add(pageCursor{at: uint64(t.Ordinal)}, a.trainer(&t))
	}
	return &pb.ListTrainersReply{Trainers: p.entries, NextPageToken: p.next()}, nil
}

// ringWaits returns why the ring has waited for 30 s; "": it has not, or there is none.
func (a *admin) ringWaits() string {
	r, err := a.master.Ring()
	if err != nil {
		return ""
	}
	//guard:wait-of-the-ring-is-shown
	return r.Stuck()
}

// ListPods lists the pods.
func (a *admin) ListPods(_ context.Context, req *pb.ListPodsRequest) (*pb.ListPodsReply, error) {
	if err := a.names(req.GetJob()); err != nil {
		return nil, err
	}
	s, err := a.master.Pods()
	if err != nil {
		return nil, err
	}
	reply := &pb.ListPodsReply{Problem: strings.ToValidUTF8(s.Problem, "\uFFFD"), RingWaits: a.ringWaits()}
	for _, p := range s.Pods {
		reply.Pods = append(reply.Pods, &pb.PodEntry{
			Name: p.Name, Role: string(p.Role), Index: uint32(p.Index), Attempt: uint32(p.Attempt), Rank: uint32(p.Rank), Phase: p.Phase,
			Charged: uint32(p.Charged), Memory: p.Memory, Reason: strings.ToValidUTF8(p.Reason, "\uFFFD"),
		})
	}
	return reply, nil
}

func (a *admin) trainer(t *taskqueue.TrainerOverview) *pb.TrainerEntry {
	entry := &pb.TrainerEntry{
		Id: t.ID, Ordinal: uint32(t.Ordinal), Incarnation: t.Incarnation, Address: strings.ToValidUTF8(t.Address, "\uFFFD"), Joined: t.Joined, Draining: t.Draining, Lost: t.Lost,
		SilentSeconds: t.Silent.Seconds(), RecordsTrained: uint64(max(0, t.Progress.Records)), RecordsPerSecond: a.speed.RecordsPerSecond(t.Incarnation),
	}
	for _, index := range t.Tasks {
		entry.Tasks = append(entry.Tasks, uint64(index))
	}
	if t.Progress.Records > 0 {
		entry.Loss = &t.Progress.Loss
	}
	return entry
}
