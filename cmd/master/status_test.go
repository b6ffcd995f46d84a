package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

func TestStatus(t *testing.T) {
	l := lead(t, master.Config{Queue: taskqueue.Options{Passes: 3}})
	empty := runArgs(t, "status", "--addr", l.addr)
	empty.wants(t, exitOK)
	if !strings.Contains(empty.stdout, "No dataset yet") || !strings.Contains(empty.stdout, "trainers  none") {
		t.Errorf("before a report: %s", empty.stdout)
	}
	l.report(1500)
	s := l.join("a")
	s.req.Progress = taskqueue.Progress{Records: 10, Loss: 0.25}
	task := s.take(finish(s.take()))
	s.take()

	for name, flags := range map[string][]string{"by address": {"--addr", l.addr}, "by etcd": l.etcd, "by both": append([]string{"--addr", l.addr}, l.etcd...)} {
		t.Run(name, func(t *testing.T) {
			r := runArgs(t, append([]string{"status", "-o", "json"}, flags...)...)
			r.wants(t, exitOK)
			v := decode[jobStatus](t, r.stdout)
			if v.Job != l.job || v.Status != "running" || v.Leader.Address != l.addr || v.Leader.Term == 0 || v.Epoch != 1 || v.Commit == 0 || v.Totals.Commits == 0 {
				t.Errorf("head: %+v", v)
			}
			d := v.Datasets[0]
			if d.Kind != "training" || len(d.Digest) != 64 || d.Pass != 1 || d.Passes != 3 || d.Tasks != 1500 || d.Done != 1 || d.Pending != 2 || d.Todo != 1497 ||
				d.Retry != 0 || d.SetAside != 0 || d.Cursor != 3 || d.Chunks != 1500 || d.Records != 15000 || d.ChunksPerTask != 1 || d.AverageTask <= 0 || d.Timeout != 30 {
				t.Errorf("dataset: %+v", d)
			}
			if x := v.Totals; x.Trainers != 1 || x.RecordsTrained != 10 || x.MeanLoss == nil || *x.MeanLoss != 0.25 || x.Uptime <= 0 {
				t.Errorf("totals: %+v", x)
			}
		})
	}

	table := runArgs(t, "status", "--addr", l.addr)
	table.wants(t, exitOK)
	for _, want := range []string{
		"job       " + l.job + ", running\n", "leader    " + l.addr + ", term ", "trainers  1, 0 records/s, mean loss 0.25\n",
		"progress  ░░░░░░░░░░░░░░░░░░░░   0%", "DATASET  PASS  DONE  PENDING  RETRY  TODO   SET ASIDE  TASKS\n0        1/3   1     2 ", "1,497",
		"DATASET  KIND      PASS DONE  CHUNKS  RECORDS  TASK TIME  TIMEOUT\n0        training  0%         1,500   15,000 ",
	} {
		if !strings.Contains(table.stdout, want) {
			t.Errorf("the table lacks %q", want)
		}
	}
	if t.Failed() {
		t.Logf("table:\n%s", table.stdout)
	}
	if _, err := s.send(false, finish(task)); err != nil {
		t.Fatal(err)
	}
	yaml := runArgs(t, "status", "-o", "yaml", "--addr", l.addr)
	yaml.wants(t, exitOK)
	if !strings.Contains(yaml.stdout, "done: 2\n") {
		t.Errorf("yaml after another finish:\n%s", yaml.stdout)
	}
}

// A rate of 0 while tasks are pending is shown, without an estimate of the remaining time.
func TestStatusSaysThatTrainingIsStalled(t *testing.T) {
	reply := func(change func(*pb.StatusReply)) jobStatus {
		r := &pb.StatusReply{
			Job: "x", Status: pb.JobStatus_JOB_STATUS_RUNNING, Totals: &pb.JobTotals{Trainers: 2, RecordsTrained: 500, UptimeSeconds: 60},
			Datasets: []*pb.DatasetStatus{{Tasks: 10, Pending: 2, Todo: 8, Passes: 1, Pass: 1, Records: 1000, AverageTaskSeconds: 5}},
		}
		change(r)
		return newJobStatus(r)
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
	s := newJobStatus(reply)
	text, err := json.Marshal(s)
	if err != nil || !strings.Contains(string(text), `"mean_loss":null`) {
		t.Errorf("%s, %v", text, err)
	}
	var b bytes.Buffer
	if err := render(&b, "table", s, s.table); err != nil || !strings.Contains(b.String(), "mean loss is no number") || !strings.Contains(b.String(), "\n\nNo dataset yet") || !strings.Contains(b.String(), "x, paused: a disk is gone") || !strings.Contains(b.String(), ", 1,200 refused by etcd;") {
		t.Errorf("%s, %v", b.String(), err)
	}
}

// While the first dataset is being registered, status says how far that is.
func TestStatusOfARegistration(t *testing.T) {
	s := newJobStatus(&pb.StatusReply{Registration: &pb.Registration{Step: "indexing the dataset", Done: 3201, Total: 10_000}})
	var b bytes.Buffer
	if err := render(&b, "table", s, s.table); err != nil || !strings.Contains(b.String(), "indexing the dataset: 3,201 of 10,000") {
		t.Errorf("%s, %v", b.String(), err)
	}
	text, err := json.Marshal(s)
	if err != nil || !strings.Contains(string(text), `"registration":{"step":"indexing the dataset","done":3201,"total":10000}`) {
		t.Errorf("%s, %v", text, err)
	}
}

func TestWatch(t *testing.T) {
	l := lead(t, master.Config{Queue: taskqueue.Options{Passes: 1}})
	l.report(2)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	reader, writer := io.Pipe()
	code := make(chan int, 1)
	go func() {
		args := append([]string{"status", "--watch", "--interval", "20ms", "-o", "json"}, l.etcd...)
		code <- run(ctx, args, writer, io.Discard)
		writer.Close()
	}()
	looks := json.NewDecoder(reader)
	next := func() jobStatus {
		t.Helper()
		var s jobStatus
		if err := looks.Decode(&s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	if s := next(); s.Datasets[0].Done != 0 {
		t.Errorf("the first look: %+v", s)
	}
	s := l.join("a")
	task := s.take(finish(s.take()))
	for next().Datasets[0].Done != 1 {
	}
	if _, err := s.send(false, finish(task)); err != nil {
		t.Fatal(err)
	}
	last := next()
	for ; last.Status == "running"; last = next() {
	}
	if last.Status != "ended" || last.Datasets[0].Done != 2 {
		t.Errorf("the last look: %+v", last)
	}
	if got := <-code; got != exitOK {
		t.Errorf("exit code %d", got)
	}
}

func TestWatchEndsWhenInterrupted(t *testing.T) {
	l := lead(t, master.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	reader, writer := io.Pipe()
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"queues", "--watch", "--interval", "20ms", "--addr", l.addr}, writer, io.Discard)
		writer.Close()
	}()
	if _, err := reader.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := io.Copy(io.Discard, reader); err != nil {
		t.Fatal(err)
	}
	if got := <-code; got != exitOK {
		t.Errorf("exit code %d", got)
	}
	runArgs(t, "status", "--watch", "--interval", "1ns", "--addr", l.addr).wants(t, exitUsage, "--interval", "at least 10ms")
}

// A port without a listener.
func closedPort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func TestStatusWithoutMasterFails(t *testing.T) {
	l := lead(t, master.Config{})
	closed := closedPort(t)
	tests := map[string]struct {
		flags []string
		code  int
		words []string
	}{
		"no master at the address":  {[]string{"--addr", closed}, exitFailed, []string{"no master answers at " + closed, "master --listen " + closed, "--endpoints"}},
		"another job":               {[]string{"--addr", l.addr, "--job", "mnist"}, exitUsage, []string{"--job", "mnist", l.job}},
		"no such job in etcd":       {[]string{"--endpoints", etcdtest.Endpoint(t), "--job", "mnist"}, exitUsage, []string{`no job "mnist"`, "name one of these with --job: "}},
		"etcd is away":              {[]string{"--endpoints", closed, "--dial-timeout", "300ms"}, exitStore, []string{"etcd is unreachable", closed}},
		"a name that cannot be one": {[]string{"--endpoints", closed, "--job", "a/b"}, exitUsage, []string{"--job", "a/b"}},
		"an address that is none":   {[]string{"--addr", "nowhere"}, exitUsage, []string{`bad value "nowhere" for --addr`, "expected host:port"}},
	}
	for name, tt := range tests {
		for _, command := range []string{"status", "queues"} {
			t.Run(name+", "+command, func(t *testing.T) {
				runArgs(t, append([]string{command}, tt.flags...)...).wants(t, tt.code, tt.words...)
			})
		}
	}
	l.stop()
	r := runArgs(t, append([]string{"status"}, l.etcd...)...)
	r.wants(t, exitFailed, "no master leads", "master --endpoints", "--job "+l.job, "queues --literal")
}

func TestStatusOfStandbyFails(t *testing.T) {
	l := lead(t, master.Config{})
	second := standBy(t, l)
	runArgs(t, "status", "--addr", second).wants(t, exitFailed, second+": not the leader: stand-by: waiting for ")
}

func TestEmptyEtcd(t *testing.T) {
	endpoint := etcdtest.StartProcess(t, 0).Endpoint()
	for _, args := range [][]string{{"status"}, {"queues"}, {"queues", "--literal"}, {"verify"}} {
		runArgs(t, append(args, "--endpoints", endpoint)...).wants(t, exitUsage, "no job has run in the etcd at "+endpoint, "master --endpoints "+endpoint)
	}
}

func TestThousands(t *testing.T) {
	numbers := []uint64{0, 7, 999, 1000, 12345, 999999, 1000000, 18446744073709551615}
	want := []string{"0", "7", "999", "1,000", "12,345", "999,999", "1,000,000", "18,446,744,073,709,551,615"}
	var got []string
	for _, n := range numbers {
		got = append(got, thousands(n))
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
			s := newJobStatus(&pb.StatusReply{Status: tt.status, Datasets: tt.datasets, Totals: &pb.JobTotals{RecordsPerSecond: tt.rate, Trainers: tt.trainers}})
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
		s := newJobStatus(reply)
		var b bytes.Buffer
		if err := render(&b, "table", s, s.table); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > screenWidth {
				t.Errorf("%d columns, want at most %d: %s", n, screenWidth, line)
			}
		}
	}
}
