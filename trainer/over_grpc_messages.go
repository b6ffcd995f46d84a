package trainer

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"trainmaster/dataset"
	"trainmaster/master/netrpc/wire"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
	"trainmaster/taskqueue/onwire"
)

// call makes a call with the messages of package wire.
func (o *overGRPC) call(ctx context.Context, method string, request, reply any) error {
	switch r := request.(type) {
	case *wire.NextRequest:
		return o.next(ctx, r, reply.(*wire.NextReply)) //nolint:forcetypeassert // the caller pairs them
	case wire.JoinRequest:
		out, err := o.api.Join(ctx, &pb.JoinRequest{Id: r.ID, Address: r.Address, Job: r.Job, ControlAddress: r.Control, Window: uint32(r.Window)})
		if err != nil {
			return err
		}
		*reply.(*wire.JoinReply) = joinReply(out)
		return nil
	case beatRequest:
		out, err := o.api.Heartbeat(ctx, &pb.HeartbeatRequest{
			Session: sessionToProto(r.Trainer), Moving: tokensToProto(r.Moving), Held: tokensToProto(r.Held), Progress: progressToProto(r.Progress), Evaluates: r.Evaluates,
		})
		*reply.(*beatReply) = heartbeatReply(out, r.Held)
		return err
	case wire.LeaveRequest:
		_, err := o.api.Leave(ctx, &pb.LeaveRequest{Session: sessionToProto(r.Trainer), Lost: r.Lost})
		return err
	case []string:
		_, err := o.api.ReportDataset(ctx, &pb.ReportDatasetRequest{Paths: r})
		return err
	case wire.SaveModelRequest:
		out, err := o.api.SaveModel(ctx, &pb.SaveModelRequest{Session: sessionToProto(r.Trainer)})
		reply.(*wire.SaveModelReply).Elected = out.GetElected()
		return err
	case wire.StagedRequest:
		out, err := o.api.Staged(ctx, &pb.StagedRequest{Session: sessionToProto(r.Trainer), Version: r.Version, Records: uint32(r.Records), Epoch: r.Epoch})
		*reply.(*wire.StagedReply) = wire.StagedReply{Committed: out.GetCommitted(), Included: out.GetIncluded()}
		return err
	}
	out, err := o.step(ctx, method, request)
	*reply.(*wire.StepReply) = stepReply(out)
	return err
}

// step makes a call of explicit commits or cuts.
func (o *overGRPC) step(ctx context.Context, method string, request any) (*pb.StepReply, error) {
	switch r := request.(type) {
	case wire.LastStepRequest:
		return o.api.LastStep(ctx, &pb.LastStepRequest{Session: sessionToProto(r.Trainer), Epoch: r.Epoch})
	case wire.CutWatchRequest:
		return o.api.CutWatch(ctx, &pb.CutWatchRequest{Session: sessionToProto(r.Trainer)})
	case wire.FlushedRequest:
		in := &pb.FlushedRequest{Session: sessionToProto(r.Trainer), Generation: r.Generation, Step: r.Step}
		for _, p := range r.Positions {
			in.Positions = append(in.Positions, &pb.TaskPosition{Token: onwire.Token(p.Token), Records: p.Records})
		}
		return o.api.Flushed(ctx, in)
	case wire.StepRequest:
		in := &pb.StepRequest{Session: sessionToProto(r.Trainer), Generation: r.Generation, Step: r.Step}
		if method == "Commit" {
			return o.api.Commit(ctx, in)
		}
		return o.api.Rollback(ctx, in)
	}
	panic(fmt.Sprintf("trainer: no gRPC message for a request %T of %s", request, method))
}

// heartbeatReply translates the answer to a heartbeat that listed the tasks of held. It ignores commands about other tasks.
func heartbeatReply(in *pb.HeartbeatReply, held []taskqueue.Token) (reply beatReply) {
	out := wire.HeartbeatGoOn
	if in.GetDraining() {
		out = wire.HeartbeatDraining
	}
	for _, command := range in.GetCommands() {
		if stop := command.GetStopTask(); stop != nil {
			if tok := onwire.TokenOf(stop.GetToken()); slices.Contains(held, tok) {
				reply.Stops = append(reply.Stops, tok)
			}
		}
		if task := command.GetEvaluateCurrentModel(); task != nil {
			reply.Evaluate = task
		}
	}
	reply.Answer = out
	return reply
}

func joinReply(in *pb.JoinReply) wire.JoinReply {
	out := wire.JoinReply{
		Trainer: wire.Trainer{Ordinal: taskqueue.Ordinal(in.GetSession().GetOrdinal()), Incarnation: in.GetSession().GetIncarnation()},
		Sync:    in.GetSynchronous(), Explicit: in.GetExplicitCommits(), Cuts: in.GetCuts(), Epoch: in.GetEpoch(),
		TTL: time.Duration(in.GetSessionTtl() * float64(time.Second)), Window: int(in.GetWindow()),
	}
	copy(out.JobID[:], in.GetJobId())
	return out
}

func stepReply(in *pb.StepReply) wire.StepReply {
	return wire.StepReply{Done: in.GetDone(), Place: taskqueue.StepPlace{
		Step: in.GetStep(), Generation: in.GetGeneration(), Epoch: in.GetEpoch(), Uncommitted: int(in.GetUncommitted()), Round: in.GetRound(),
	}}
}

func sessionToProto(t wire.Trainer) *pb.Session {
	return &pb.Session{Ordinal: uint32(t.Ordinal), Incarnation: t.Incarnation}
}

func progressToProto(p taskqueue.Progress) *pb.TrainerProgress {
	return &pb.TrainerProgress{Records: p.Records, Loss: p.Loss}
}

func tokensToProto(list []taskqueue.Token) (out []*pb.Token) {
	for _, t := range list {
		out = append(out, onwire.Token(t))
	}
	return out
}

func kindsToProto(kinds taskqueue.Kinds) (out []pb.TaskKind) {
	for _, k := range []taskqueue.Kind{taskqueue.Training, taskqueue.Evaluation, taskqueue.Prediction} {
		if kinds&taskqueue.KindsOf(k) != 0 {
			out = append(out, pb.TaskKind(k)+pb.TaskKind_TASK_KIND_TRAINING)
		}
	}
	return out
}

// workRequest returns the message of a part of a request. It has at most one finish, or Most.
func workRequest(id uint64, r *wire.NextRequest) *pb.WorkRequest {
	request := &pb.Request{
		Session: sessionToProto(r.Trainer), Seq: r.Seq, Ack: r.Ack, Held: tokensToProto(r.Held), SeenCommit: r.SeenCommit, SeenProof: r.SeenProof,
		JobId: r.JobID[:], Epoch: r.Epoch, Progress: progressToProto(r.Progress), Most: uint32(r.Most),
	}
	accepts := kindsToProto(r.Accepts)
	if len(r.Finished) == 0 {
		return &pb.WorkRequest{Id: id, Call: &pb.WorkRequest_GetTask{GetTask: &pb.TrainerInfo{Request: request, Accepts: accepts}}}
	}
	f := r.Finished[0]
	for _, more := range r.Finished[1:] {
		request.Finished = append(request.Finished, &pb.Finish{Token: onwire.Token(more.Token), Error: more.Error, Step: more.Step})
	}
	result := &pb.TaskResult{
		TaskId: int64(f.Token.ID()), Token: onwire.Token(f.Token), Error: f.Error, Step: f.Step, Request: request,
		Stat: statsToProto(f.Stats), EncodedMetrics: f.Metrics, NotFiniteMetric: f.NotFinite, ModelPath: f.Model.Path, ModelId: int64(f.Model.Version),
		KeptModel: f.Kept,
	}
	if r.Want {
		result.Ask = &pb.TrainerInfo{Accepts: accepts}
	}
	return &pb.WorkRequest{Id: id, Call: &pb.WorkRequest_PushResult{PushResult: result}}
}

var finishStatuses = map[pb.PushResultResponse_Status]taskqueue.FinishStatus{
	pb.PushResultResponse_STATUS_COUNTED: taskqueue.Counted, pb.PushResultResponse_STATUS_ALREADY_COUNTED: taskqueue.AlreadyCounted,
	pb.PushResultResponse_STATUS_STALE: taskqueue.Stale, pb.PushResultResponse_STATUS_RETURNED: taskqueue.Returned,
}

var waits = map[pb.WaitTaskSpec_Reason]taskqueue.WaitFor{
	pb.WaitTaskSpec_REASON_NO_TASK: taskqueue.WaitTask, pb.WaitTaskSpec_REASON_COMMIT: taskqueue.WaitCommit,
	pb.WaitTaskSpec_REASON_ROLLBACK: taskqueue.WaitRollback, pb.WaitTaskSpec_REASON_CUT: taskqueue.WaitCut,
	pb.WaitTaskSpec_REASON_DRAIN: taskqueue.WaitDrain,
}

// applyWorkReply applies the answer to a part of a request.
func applyWorkReply(in *pb.WorkReply, reply *wire.NextReply) error {
	spec := in.GetTask()
	switch c := in.GetContent().(type) {
	case *pb.WorkReply_Error:
		return wire.Refusal(kinds[c.Error.GetReason()], c.Error.GetText())
	case *pb.WorkReply_Result:
		reply.Finishes = append(reply.Finishes, finishStatuses[c.Result.GetStatus()])
		spec = c.Result.GetNext()
	}
	if spec == nil {
		return nil
	}
	reply.Commit, reply.CommitProof = spec.GetCommit(), spec.GetCommitProof()
	switch task := spec.GetTask().(type) {
	case *pb.TaskSpec_End:
		switch task.End.GetReason() {
		//guard:diverged-job-failed
		case pb.EndTaskSpec_REASON_FAILED, pb.EndTaskSpec_REASON_DIVERGED:
			return wire.Refusal(wire.ErrJobFailed, task.End.GetText())
		default:
			return wire.Refusal(wire.ErrJobFinished, cmp.Or(task.End.GetText(), "the job has ended"))
		}
	case *pb.TaskSpec_Wait:
		reply.WaitFor = waits[task.Wait.GetReason()]
		return nil
	case *pb.TaskSpec_TrainingTask:
		reply.HyperParameters = hyperParametersOf(task.TrainingTask.GetHyperParameter())
		if m := task.TrainingTask.GetModel(); m != nil {
			reply.From = taskqueue.ModelSource{Path: m.GetModelPath(), Address: m.GetTrainerIp(), Ordinal: taskqueue.Ordinal(m.GetTrainerId())}
		}
		if err := applyFiles(spec, filesOf(task.TrainingTask.GetData()), reply); err != nil {
			return err
		}
		return applyMore(spec.GetMore(), reply)
	case *pb.TaskSpec_EvaluationSpec:
		e, token := task.EvaluationSpec, onwire.TokenOf(spec.GetToken())
		reply.Round = taskqueue.Round{Number: e.GetRound(), Set: token.Dataset, Pass: token.Pass, Version: e.GetModelVersion(), Model: e.GetModel().GetModelPath()}
		return applyFiles(spec, filesOf(e.GetData()), reply)
	case *pb.TaskSpec_PredictionSpec:
		return applyFiles(spec, filesOf(task.PredictionSpec.GetData()), reply)
	}
	return wire.Refusal(nil, fmt.Sprintf("task %d: expected a training, evaluation or prediction task, found another kind: update this trainer", spec.GetTaskId()))
}

// applyMore adds further training tasks to a reply.
func applyMore(list []*pb.TaskSpec, reply *wire.NextReply) error {
	for _, spec := range list {
		var one wire.NextReply
		if err := applyFiles(spec, filesOf(spec.GetTrainingTask().GetData()), &one); err != nil {
			return err
		}
		reply.More = append(reply.More, wire.FurtherTask{Task: one.Task, Stamps: one.Stamps, Base: one.Base})
	}
	return nil
}

// hyperParametersOf returns the numbers among hyper-parameters.
func hyperParametersOf(in *pb.HyperParameter) map[string]float64 {
	if len(in.GetValues()) == 0 {
		return nil
	}
	values := make(map[string]float64, len(in.GetValues()))
	for name, v := range in.GetValues() {
		switch v := v.GetValue().(type) {
		case *pb.HyperParameter_Value_Number:
			values[name] = v.Number
		case *pb.HyperParameter_Value_Integer:
			values[name] = float64(v.Integer)
		}
	}
	return values
}

// statsToProto returns nil if nothing was reported.
func statsToProto(s taskqueue.RunStats) *pb.RunStats {
	if s == (taskqueue.RunStats{}) {
		return nil
	}
	return &pb.RunStats{Records: s.Records, Seconds: s.Seconds, PeakMemoryBytes: s.PeakMemory, GpuUtilization: s.GPUUtilization}
}

// filesOf returns the files of a task. A trainer reads them itself, also if the job has a data proxy.
func filesOf(data *pb.DataSpec) []*pb.DataFileSpec {
	//guard:proxied-files-read
	if stream := data.GetStream(); stream != nil {
		return stream.GetFiles().GetFiles()
	}
	return data.GetFiles().GetFiles()
}

// applyFiles makes the task of a reply from the files of a message.
func applyFiles(spec *pb.TaskSpec, files []*pb.DataFileSpec, reply *wire.NextReply) error {
	task := taskqueue.Task{Index: int(spec.GetIndex()), Token: onwire.TokenOf(spec.GetToken())}
	for i, f := range files {
		c := f.GetChunks()
		n := len(c.GetSizes())
		if n == 0 || len(c.GetRecords()) != n || len(c.GetChecksums()) != n || len(c.GetCompressions()) != n {
			return wire.Refusal(nil, fmt.Sprintf("task %d: file %q: expected the index of its chunks, found %d sizes, %d records, %d checksums and %d compressions: update the master or this trainer",
				spec.GetTaskId(), f.GetPath(), n, len(c.GetRecords()), len(c.GetChecksums()), len(c.GetCompressions())))
		}
		offset := f.GetByteOffset()
		//guard:range-offset-over-grpc
		if f.GetFormat() == pb.FileFormat_FILE_FORMAT_RANGE {
			offset = f.GetStartRecord()
		}
		//guard:parquet-offset-over-grpc
		if f.GetFormat() == pb.FileFormat_FILE_FORMAT_PARQUET {
			offset = f.GetRowGroup()
		}
		for i, size := range c.GetSizes() {
			ix := recordio.Index{
				Offset: offset, Size: size, Records: c.GetRecords()[i], Compression: recordio.Compression(c.GetCompressions()[i]),
				Layout: recordio.Layout(c.GetLayout()), Checksum: c.GetChecksums()[i],
			}
			task.Chunks = append(task.Chunks, taskqueue.Chunk{Idx: int(c.GetFirst()) + i, Path: f.GetPath(), Index: ix})
			offset = ix.End()
		}
		//guard:stamp-for-each-file
		if i > 0 && files[i-1].GetPath() == f.GetPath() {
			continue // another row group of the file
		}
		reply.Stamps = append(reply.Stamps, dataset.Stamp{Size: f.GetStamp().GetSize(), ModTime: f.GetStamp().GetModifiedNanos(), ETag: f.GetStamp().GetEtag()})
	}
	reply.Task, reply.Base = task, spec.GetBase()
	return nil
}
