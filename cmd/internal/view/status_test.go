package view

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"trainmaster/cmd/internal/cli"
	pb "trainmaster/proto/trainmaster/v1"
)

// A rate of 0 while tasks are pending is shown, without an estimate of the remaining time.
func TestStatusSaysThatTrainingIsStalled(t *testing.T) {
	reply := func(change func(*pb.StatusReply)) Status {
		r := &pb.StatusReply{
			Job: "x", Status: pb.JobStatus_JOB_STATUS_RUNNING, Totals: &pb.JobTotals{Trainers: 2, RecordsTrained: 500, UptimeSeconds: 60},
			Datasets: []*pb.DatasetStatus{{Tasks: 10, Pending: 2, Todo: 8, Passes: 1, Pass: 1, Records: 1000, AverageTaskSeconds: 5}},
		}
		change(r)
		return NewStatus(r)
	}
	if s := reply(func(*pb.StatusReply) {}); !s.Totals.Stalled || s.Left != nil || s.Totals.line() != "2, 0 records/s (stalled)" {
		t.Errorf("%+v, left %v, line %q", s.Totals, s.Left, s.Totals.line())
	}
	for name, change := range map[string]func(*pb.StatusReply){
		"rate":           func(r *pb.StatusReply) { r.Totals.RecordsPerSecond = 10 },
		"no record":      func(r *pb.StatusReply) { r.Totals.RecordsTrained = 0 },
		"new leader":     func(r *pb.StatusReply) { r.Totals.UptimeSeconds = 10 },
		"long tasks":     func(r *pb.StatusReply) { r.Datasets[0].AverageTaskSeconds = 40 },
		"nothing to do":  func(r *pb.StatusReply) { r.Datasets[0].Pending = 0 },
		"job is paused":  func(r *pb.StatusReply) { r.Status = pb.JobStatus_JOB_STATUS_PAUSED },
		"trainers leave": func(r *pb.StatusReply) { r.Totals.Trainers = 0 },
	} {
		if s := reply(change); s.Totals.Stalled || strings.Contains(s.Totals.line(), "stalled") {
			t.Errorf("%s: %+v", name, s.Totals)
		}
	}
}

func TestStatusOfALossThatDiverged(t *testing.T) {
	reply := &pb.StatusReply{Job: "x", Status: pb.JobStatus_JOB_STATUS_PAUSED, Reason: "a disk is gone", Totals: &pb.JobTotals{Trainers: 2, CommitsRefused: 1200, MeanLoss: new(float64)}}
	zero := 0.0
	*reply.Totals.MeanLoss = zero / zero
	s := NewStatus(reply)
	text, err := json.Marshal(s)
	if err != nil || !strings.Contains(string(text), `"mean_loss":null`) {
		t.Errorf("%s, %v", text, err)
	}
	var b bytes.Buffer
	if err := cli.Render(&b, "table", s, s.Table); err != nil || !strings.Contains(b.String(), "mean loss is no number") || !strings.Contains(b.String(), "\n\nNo dataset yet") || !strings.Contains(b.String(), "x, paused: a disk is gone") || !strings.Contains(b.String(), ", 1,200 refused by etcd;") {
		t.Errorf("%s, %v", b.String(), err)
	}
}

// While the first dataset is being registered, status says how far that is.
func TestStatusOfARegistration(t *testing.T) {
	s := NewStatus(&pb.StatusReply{Registration: &pb.Registration{Step: "indexing the dataset", Done: 3201, Total: 10_000}})
	var b bytes.Buffer
	if err := cli.Render(&b, "table", s, s.Table); err != nil || !strings.Contains(b.String(), "indexing the dataset: 3,201 of 10,000") {
		t.Errorf("%s, %v", b.String(), err)
	}
	text, err := json.Marshal(s)
	if err != nil || !strings.Contains(string(text), `"registration":{"step":"indexing the dataset","done":3201,"total":10000}`) {
		t.Errorf("%s, %v", text, err)
	}
}

func TestThousands(t *testing.T) {
	numbers := []uint64{0, 7, 999, 1000, 12345, 999999, 1000000, 18446744073709551615}
	want := []string{"0", "7", "999", "1,000", "12,345", "999,999", "1,000,000", "18,446,744,073,709,551,615"}
	var got []string
	for _, n := range numbers {
		got = append(got, cli.Thousands(n))
	}
	if !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
}

// The progress of a job covers all passes of its datasets. The remaining time follows from the present speed.
func TestStatusProgressAndTimeLeft(t *testing.T) {
	running, paused, ended := pb.JobStatus_JOB_STATUS_RUNNING, pb.JobStatus_JOB_STATUS_PAUSED, pb.JobStatus_JOB_STATUS_ENDED
	half := &pb.DatasetStatus{Pass: 3, Passes: 4, Tasks: 10, Done: 0, Pending: 2, Todo: 8, Records: 1000, AverageTaskSeconds: 2}
	for name, tt := range map[string]struct {
		status   pb.JobStatus
		rate     float64
		trainers uint32
		datasets []*pb.DatasetStatus
		progress float64 // -1: none
		left     float64 // -1: none
	}{
		"no dataset":       {running, 0, 1, nil, -1, -1},
		"by records":       {running, 100, 2, []*pb.DatasetStatus{half}, 0.5, 20},
		"by tasks":         {running, 0, 2, []*pb.DatasetStatus{half}, 0.5, 20},
		"without trainers": {running, 0, 0, []*pb.DatasetStatus{half}, 0.5, -1},
		"paused":           {paused, 100, 2, []*pb.DatasetStatus{half}, 0.5, -1},
		"without end":      {running, 100, 2, []*pb.DatasetStatus{{Pass: 3, Tasks: 10}}, -1, -1},
		"two datasets":     {running, 100, 1, []*pb.DatasetStatus{half, {Pass: 1, Passes: 1, Tasks: 40, Done: 9, SetAside: 1, Records: 400}}, 0.375, 23},
		"ended":            {ended, 0, 0, []*pb.DatasetStatus{{Pass: 4, Passes: 4, Tasks: 10, Done: 9, SetAside: 1}}, 1, -1},
		"ended, from etcd": {ended, 0, 0, []*pb.DatasetStatus{{Pass: 4, Tasks: 10, Done: 10}}, 1, -1},
		"before a pass":    {running, 0, 1, []*pb.DatasetStatus{{Passes: 2, Tasks: 10}}, 0, -1},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewStatus(&pb.StatusReply{Status: tt.status, Datasets: tt.datasets, Totals: &pb.JobTotals{RecordsPerSecond: tt.rate, Trainers: tt.trainers}})
			for what, v := range map[string][2]float64{"progress": {tt.progress, orMinusOne(s.Progress)}, "time left": {tt.left, orMinusOne(s.Left)}} {
				if math.Abs(v[0]-v[1]) > 1e-9 {
					t.Errorf("%s: found %v, want %v", what, v[1], v[0])
				}
			}
		})
	}
}

func orMinusOne(v *float64) float64 {
	if v == nil {
		return -1
	}
	return *v
}

// A large job with bad news fits the screen.
func TestStatusFitsScreen(t *testing.T) {
	loss := 0.12345
	reply := &pb.StatusReply{
		Job: strings.Repeat("j", 40), Status: pb.JobStatus_JOB_STATUS_PAUSED, Reason: strings.Repeat("more tasks are set aside than may be ", 5),
		LeaderAddress: "worker-17.trainers.svc.cluster.local:8080", Term: 1 << 40, Epoch: 1000, Commit: 1 << 50,
		Checkpoint:       &pb.CheckpointStatus{Set: 123456, AgeSeconds: 86400, Failure: strings.Repeat("write /checkpoints: no space left on device; ", 3)},
		ParameterServers: &pb.ParameterServers{Wanted: 1024, Missing: []uint32{1, 10, 100, 1000}, MovingTo: 1000, PlacementEpoch: 1000},
		Steps:            &pb.Steps{Committed: 1 << 40, Uncommitted: 1 << 40, Generation: 1 << 40},
		Totals:           &pb.JobTotals{Trainers: 100_000, RecordsPerSecond: 1e9, MeanLoss: &loss, Commits: 1 << 50, CommitsRefused: 1 << 40, UptimeSeconds: 1e7},
		Datasets: []*pb.DatasetStatus{{
			Dataset: 10, Kind: pb.TaskKind_TASK_KIND_PREDICTION, Pass: 9_999, Passes: 10_000, Tasks: 1_000_000, Todo: 999_999, Pending: 100_000, Retry: 1000,
			Done: 999_999, SetAside: 100_000, Chunks: 100_000_000, Records: 9_999_999_999, AverageTaskSeconds: 3599.9, TimeoutSeconds: 3600,
		}},
	}
	for _, status := range []pb.JobStatus{reply.Status, pb.JobStatus_JOB_STATUS_RUNNING, pb.JobStatus_JOB_STATUS_ENDED} {
		reply.Status = status
		s := NewStatus(reply)
		var b bytes.Buffer
		if err := cli.Render(&b, "table", s, s.Table); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > cli.ScreenWidth {
				t.Errorf("%d columns, want at most %d: %s", n, cli.ScreenWidth, line)
			}
		}
	}
}
