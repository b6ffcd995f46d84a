package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/recordio"
)

// corrupt changes a byte in the first chunk of a file and preserves its size and time. repair restores the byte.
func corrupt(t testing.TB, path string) (repair func()) {
	t.Helper()
	file, err := recordio.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	index, err := file.Index()
	if err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	was, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	write := func(b byte) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteAt([]byte{b}, index[0].End()-1)
		}
		if err == nil {
			err = f.Close()
		}
		if err == nil {
			err = os.Chtimes(path, time.Time{}, was.ModTime())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	whole := content[index[0].End()-1]
	write(whole ^ 0xff)
	return func() { t.Helper(); write(whole) }
}

// An operator pauses a job, retries a set-aside task after the repair of its file, resumes the job, and drains one of three
// trainers during a pass. Every task is counted exactly once.
func TestAdmin(t *testing.T) {
	t.Parallel()
	const passes = 2
	j := newJob(t)
	master := j.master("--passes", "2", "--ps", "1", "--shuffle=false", "--task-max-failures", "1", "--lease-ttl", "60s")
	j.server()
	j.awaitLeader(0)
	operator := func(says string, args ...string) string {
		t.Helper()
		o := run(t, j.dir, j.in(args...)...)
		o.wants(t, 0)
		if !strings.Contains(o.stdout, says) {
			t.Errorf("master %v: expected %q, found %q", args, says, o.stdout)
		}
		return o.stdout
	}

	operator("the job is paused", "pause", "--reason", "the trainers have not started")
	trainers := map[string]*process{}
	for _, id := range []string{"a", "b", "c"} {
		trainers[id] = j.trainer(id, "--record-delay", "10ms")
	}
	j.awaitStatus("the dataset is reported, and all trainers wait", func(s *pb.StatusReply) bool { return len(s.Datasets) == 1 && s.Totals.Trainers == 3 })
	if s := j.awaitStatus("paused", func(*pb.StatusReply) bool { return true }); s.Status != pb.JobStatus_JOB_STATUS_PAUSED || s.Datasets[0].Cursor != 0 {
		t.Fatalf("expected a paused job without a dispatched task, found %v", s)
	}
	for _, p := range trainers { // they have read the description of the dataset
		p.awaitLog("optimizer chosen")
	}
	repair := corrupt(t, j.data.Train.Paths[0])
	operator("the job is running", "resume")

	// The first task fails twice.
	j.awaitStatus("a task is set aside", func(s *pb.StatusReply) bool { return s.Datasets[0].SetAside == 1 })
	operator("the job is paused", "pause", "--reason", "a file is damaged")
	paused := j.awaitStatus("pending tasks are finished", func(s *pb.StatusReply) bool { return s.Datasets[0].Pending == 0 })
	if paused.Reason != "paused by an operator: a file is damaged" || paused.Datasets[0].Todo == 0 || paused.Datasets[0].Pass != 1 {
		t.Errorf("expected a pause in the middle of the first pass, found %v", paused)
	}
	var aside []struct {
		Task  uint64 `json:"task"`
		State string `json:"state"`
		Error string `json:"error"`
	}
	decodeSome(t, operator("", "tasks", "--state", "set_aside", "-o", "json"), &aside)
	if len(aside) != 1 || aside[0].State != "set_aside" || !strings.Contains(aside[0].Error, j.data.Train.Paths[0]) {
		t.Fatalf("expected one set-aside task of the damaged file, found %+v", aside)
	}
	repair()
	operator("tasks put back: 1", "tasks", "retry", fmt.Sprint(aside[0].Task))
	if s := j.awaitStatus("still paused", func(*pb.StatusReply) bool { return true }); s.Status != pb.JobStatus_JOB_STATUS_PAUSED || s.Datasets[0].Retry != 1 || s.Datasets[0].Done != paused.Datasets[0].Done {
		t.Errorf("expected that a retry does not end the operator's pause, found %v", s)
	}
	operator("the job is running", "resume")

	j.awaitMidPass(1)
	run(t, j.dir, j.in("drain", "unknown")...).wants(t, exitFailed, `"unknown"`, "there are ", "a", "b", "c")
	operator("trainer b drains", "drain", "b")
	trainers["b"].wantExit(0)
	trainers["b"].awaitLog("drained")
	j.awaitTrainer("b", "has left", func(e *pb.TrainerEntry) bool { return e == nil })
	trainers["a"].wantExit(0)
	trainers["c"].wantExit(0)
	master.wantExit(0)
	h := j.wantExactlyOnce(passes, tasksPerPass)
	if h.sessions["b"] != 1 || len(h.lost) != 0 {
		t.Errorf("b joined %d times, lost sessions: %v; expected one join and no lost session", h.sessions["b"], h.lost)
	}
	for at, counted := range h.finished {
		if at.pass == passes && at.position > tasksPerPass/2 && counted[0].trainer == "b" {
			t.Errorf("%+v was counted for b after its drain", at)
		}
	}
}
