package grpcapi_test

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"trainmaster/master"
	"trainmaster/master/component"
	"trainmaster/master/evaluation/metric"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

// evaluation is a component that begins a round.
type evaluation struct{ term chan component.Term }

func (evaluation) Name() string                                  { return "evaluation" }
func (evaluation) Init(context.Context) error                    { return nil }
func (evaluation) Prepare(context.Context, component.Term) error { return nil }
func (e evaluation) Run(ctx context.Context, t component.Term) error {
	e.term <- t
	<-ctx.Done()
	return context.Cause(ctx)
}

var acceptsEvaluation = &pb.TrainerInfo{TrainerId: 1, Accepts: []pb.TaskKind{pb.TaskKind_TASK_KIND_EVALUATION}}

// evaluating begins a round of two tasks. It returns a trainer without a session with a task of it, and a function that reads the round.
func evaluating(t *testing.T) (p *plain, spec *pb.TaskSpec, round func() taskqueue.Round) {
	t.Helper()
	e := evaluation{make(chan component.Term, 1)}
	s := serve(t, 3, master.Config{Components: []component.Component{e}, ChunksPerTask: 1})
	term := <-e.term
	path := filepath.Join(t.TempDir(), "held-out")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := recordio.NewWriter(file, recordio.WriterOptions{RecordsPerChunk: 1})
	err = errors.Join(w.Write([]byte("a")), w.Write([]byte("b")), w.Close(), file.Close(),
		s.ReportSet(t.Context(), taskqueue.SetSpec{Kind: taskqueue.Evaluation}, []string{path}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := term.Submit(t.Context(), &taskqueue.BeginRound{Set: 1, Number: 1, Version: 50, Model: "models/5"}); err != nil {
		t.Fatal(err)
	}
	p = s.plain(t, 1)
	if spec, err = p.client.GetTask(t.Context(), acceptsEvaluation); err != nil {
		t.Fatal(err)
	}
	return p, spec, func() (r taskqueue.Round) {
		if err := term.Read(t.Context(), func(q *taskqueue.Queue) { r, _ = q.Round() }); err != nil {
			t.Fatal(err)
		}
		return r
	}
}

func TestMetricsOfResultsAreMerged(t *testing.T) {
	p, spec, current := evaluating(t)
	if found := spec.GetEvaluationSpec().GetModel().GetModelPath(); found != "models/5" {
		t.Errorf("model %q, expected the model of the round", found)
	}
	positives, negatives := make([]int64, metric.Bins), make([]int64, metric.Bins)
	positives[700], negatives[300] = 3, 4
	result := &pb.TaskResult{TaskId: spec.GetTaskId(), Loss: new(0.5), Accuracy: new(0.25), Stat: &pb.RunStats{Records: 4}, Metrics: []*pb.Metric{
		{Name: "loss", Value: &pb.Metric_Mean{Mean: &pb.Mean{Sum: 3, Count: 2}}},
		{Name: "clicks", Value: &pb.Metric_Sum{Sum: 7}},
		{Name: "digits", Value: &pb.Metric_ConfusionMatrix{ConfusionMatrix: &pb.ConfusionMatrix{Classes: 2, Counts: []int64{3, 1, 0, 4}}}},
		{Name: "score", Value: &pb.Metric_Histogram{Histogram: &pb.Histogram{Positives: positives, Negatives: negatives}}},
	}}
	if status := p.push(result).GetStatus(); status != pb.PushResultResponse_STATUS_COUNTED {
		t.Errorf("status %v", status)
	}
	p.push(result) // a repetition
	round := current()
	set, err := metric.Decode(round.Metrics)
	if err != nil || round.Results != 1 {
		t.Fatalf("%d results, %v", round.Results, err)
	}
	want := []metric.Figure{{Name: "accuracy", Value: 0.25}, {Name: "clicks", Value: 7}, {Name: "digits.accuracy", Value: 0.875}, {Name: "digits.f1", Value: set.Figures()[3].Value},
		{Name: "digits.precision", Value: 0.9}, {Name: "digits.recall", Value: 0.875}, {Name: "loss", Value: 1.5}, {Name: "score.auc", Value: 1}}
	if found := set.Figures(); !slices.Equal(found, want) {
		t.Errorf("figures %v, expected %v", found, want)
	}
}

// Invalid metrics are named, and the task stays dispatched.
func TestInvalidMetricsAreRefused(t *testing.T) {
	p, spec, current := evaluating(t)
	id := spec.GetTaskId()
	mean := func(name string, sum float64, count int64) *pb.Metric {
		return &pb.Metric{Name: name, Value: &pb.Metric_Mean{Mean: &pb.Mean{Sum: sum, Count: count}}}
	}
	matrix := func(classes int32, counts ...int64) *pb.Metric {
		return &pb.Metric{Name: "m", Value: &pb.Metric_ConfusionMatrix{ConfusionMatrix: &pb.ConfusionMatrix{Classes: classes, Counts: counts}}}
	}
	for name, c := range map[string]struct {
		field  string
		result *pb.TaskResult
	}{
		"count":       {"metrics[m]", &pb.TaskResult{Metrics: []*pb.Metric{mean("m", 1, -1)}}},
		"name":        {"metrics[a b]", &pb.TaskResult{Metrics: []*pb.Metric{mean("a b", 1, 1)}}},
		"twice":       {"metrics[m]", &pb.TaskResult{Metrics: []*pb.Metric{mean("m", 1, 1), mean("m", 1, 1)}}},
		"no value":    {"metrics[m]", &pb.TaskResult{Metrics: []*pb.Metric{{Name: "m"}}}},
		"not square":  {"metrics[m]", &pb.TaskResult{Metrics: []*pb.Metric{matrix(2, 1, 2, 3)}}},
		"overflow":    {"metrics[m]", &pb.TaskResult{Metrics: []*pb.Metric{matrix(1<<16, 1)}}},
		"bins":        {"metrics[m]", &pb.TaskResult{Metrics: []*pb.Metric{{Name: "m", Value: &pb.Metric_Histogram{}}}}},
		"too many":    {"metrics", &pb.TaskResult{Metrics: make([]*pb.Metric, 65)}},
		"long path":   {"model_path", &pb.TaskResult{ModelPath: string(make([]byte, 1025))}},
		"NaN":         {"metrics[m]", &pb.TaskResult{Metrics: []*pb.Metric{mean("m", math.NaN(), 1)}}},
		"two forms":   {"encoded_metrics", &pb.TaskResult{Metrics: []*pb.Metric{mean("m", 1, 1)}, EncodedMetrics: []byte{1, 0}}},
		"NaN of loss": {"loss", &pb.TaskResult{Loss: new(math.NaN()), Stat: &pb.RunStats{Records: 1}}},
	} {
		c.result.TaskId = id
		_, err := p.client.PushResult(t.Context(), c.result)
		_, _, bad := details(err)
		if status.Code(err) != codes.InvalidArgument || bad == nil || bad.FieldViolations[0].Field != c.field {
			t.Errorf("%s: got %v with %v, expected field %q", name, err, bad, c.field)
		}
	}
	if found := current(); found.Results != 0 || found.NotFinite != "m" && found.NotFinite != "loss" {
		t.Errorf("round %+v: expected no results, and the name of a metric that is not finite", found)
	}
	p.push(&pb.TaskResult{TaskId: id, Metrics: []*pb.Metric{mean("m", 1, 1)}})
	other, err := p.client.GetTask(t.Context(), acceptsEvaluation)
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.client.PushResult(t.Context(), &pb.TaskResult{TaskId: other.GetTaskId(), Metrics: []*pb.Metric{{Name: "m", Value: &pb.Metric_Sum{Sum: 1}}}})
	wants(t, err, codes.InvalidArgument, "BAD_METRICS", `metric "m"`)
	_, err = p.client.PushResult(t.Context(), &pb.TaskResult{TaskId: other.GetTaskId(), EncodedMetrics: []byte("not metrics")})
	wants(t, err, codes.InvalidArgument, "BAD_METRICS", "metrics of a newer version")
	if found := current(); found.Results != 1 {
		t.Errorf("%d results, expected 1", found.Results)
	}
}

// The metric of a failed task is noted, and the task returns.
func TestMetricOfAFailedTaskIsNoted(t *testing.T) {
	p, spec, current := evaluating(t)
	reply := p.push(&pb.TaskResult{TaskId: spec.GetTaskId(), Error: "loss is NaN", NotFiniteMetric: "loss"})
	if found := current(); found.NotFinite != "loss" || found.Results != 0 || reply.GetStatus() != pb.PushResultResponse_STATUS_RETURNED {
		t.Errorf("found %v and round %+v, expected a returned task and the metric loss", reply, found)
	}
}

// A trainer receives the reason of a job that ends early.
func TestReasonOfAnEarlyEnd(t *testing.T) {
	for text, c := range map[string]struct {
		failed bool
		want   pb.EndTaskSpec_Reason
	}{
		"target-reached: accuracy is 1": {false, pb.EndTaskSpec_REASON_TARGET_REACHED},
		"no-progress: 3 rounds":         {false, pb.EndTaskSpec_REASON_NO_PROGRESS},
		"diverged: loss is 9":           {true, pb.EndTaskSpec_REASON_DIVERGED},
		"a disk is gone":                {true, pb.EndTaskSpec_REASON_FAILED},
		"":                              {false, pb.EndTaskSpec_REASON_PASSES_DONE},
	} {
		e := evaluation{make(chan component.Term, 1)}
		s := serve(t, 3, master.Config{Components: []component.Component{e}})
		p := s.plain(t, 1)
		id := p.get().GetTaskId() // the master stays for a trainer with a task
		if _, err := (<-e.term).Submit(t.Context(), &taskqueue.EndJob{Failed: c.failed, Reason: text}); err != nil {
			t.Fatal(err)
		}
		end := p.push(&pb.TaskResult{TaskId: id, Ask: &pb.TrainerInfo{TrainerId: 1}}).GetNext().GetEnd()
		if end.GetReason() != c.want || c.want != pb.EndTaskSpec_REASON_PASSES_DONE && !strings.Contains(end.GetText(), text) {
			t.Errorf("%q: found %v, expected %v", text, end, c.want)
		}
	}
}

// A trainer that accepts only an unknown kind receives no tasks. If it accepts training besides, it does.
func TestUnknownKindsAreNotTraining(t *testing.T) {
	s := serve(t, 3, master.Config{})
	p := s.plain(t, 1)
	for _, kind := range []pb.TaskKind{-1, 0, 4, 99} {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		spec, err := p.client.GetTask(ctx, &pb.TrainerInfo{TrainerId: 1, Accepts: []pb.TaskKind{kind}})
		cancel()
		if spec.GetTrainingTask() != nil || err == nil && spec.GetWait() == nil {
			t.Errorf("accepts %v: expected no task, found %v, %v", kind, spec, err)
		}
	}
	spec, err := p.client.GetTask(t.Context(), &pb.TrainerInfo{TrainerId: 1, Accepts: []pb.TaskKind{99, pb.TaskKind_TASK_KIND_TRAINING}})
	if err != nil || spec.GetTrainingTask() == nil {
		t.Errorf("expected a training task, found %v, %v", spec, err)
	}
}
