package view

import (
	"fmt"
	"strings"
	"testing"
	"time"

	pb "trainmaster/proto/trainmaster/v1"
)

// lines is what a progress writes, line by line.
type lines chan string

func (l lines) Write(b []byte) (int, error) {
	l <- string(b)
	return len(b), nil
}

// During a long registration of the dataset, progress counts its files.
func TestProgressOfRegistration(t *testing.T) {
	out := make(lines, 1)
	p := Progress{out: out}
	p.Show(&pb.StatusReply{})
	p.Show(&pb.StatusReply{Registration: &pb.Registration{Step: "indexing the dataset", Done: 1, Total: 10_000}})
	p.registering = p.registering.Add(-plainEvery)
	p.Show(&pb.StatusReply{Registration: &pb.Registration{Step: "indexing the dataset", Done: 3201, Total: 10_000}})
	if line := <-out; line != "indexing the dataset: 3,201 of 10,000\n" {
		t.Errorf("%q", line)
	}
}

// Before the first rate the speed is unknown, and is not shown as 0. A later 0 is a standstill.
func TestProgressOmitsUnknownRate(t *testing.T) {
	p := Progress{out: make(lines, 10)}
	at := func(rate float64) string {
		s := &pb.StatusReply{Datasets: []*pb.DatasetStatus{{Pass: 1, Passes: 1, Tasks: 4}}, Totals: &pb.JobTotals{RecordsPerSecond: rate}}
		p.Show(s)
		return p.training(s)
	}
	if text := at(0); strings.Contains(text, "records/s") {
		t.Errorf("before a rate: %q", text)
	}
	for _, rate := range []float64{10, 0} {
		if text, want := at(rate), fmt.Sprintf("  %.0f records/s", rate); !strings.Contains(text, want) {
			t.Errorf("rate %v: %q", rate, text)
		}
	}
}

func TestProgressWithoutTrainersNamesLogOnce(t *testing.T) {
	out := make(lines, 10)
	p := Progress{out: out, trainerLog: "logs/trainer-0.log", lines: time.Now().Add(time.Hour)} // no other lines
	status := func(pending uint64) *pb.StatusReply {
		return &pb.StatusReply{Status: pb.JobStatus_JOB_STATUS_RUNNING, Datasets: []*pb.DatasetStatus{{Pass: 1, Passes: 1, Tasks: 4, Pending: pending, Todo: 4 - pending}}}
	}
	p.Show(status(0))
	p.Show(status(1)) // a trainer has a task
	p.Show(status(0))
	p.Show(status(0))
	if len(out) > 0 {
		t.Fatalf("printed %q within the first minute", <-out)
	}
	for range 2 {
		p.idle = time.Now().Add(-idleAfter)
		p.Show(status(0))
	}
	if len(out) != 1 {
		t.Fatalf("printed %d lines, want 1", len(out))
	}
	if line := <-out; !strings.Contains(line, "logs/trainer-0.log") {
		t.Errorf("printed %q", line)
	}
}

// On a terminal the bar of a job that has ended stays, and is full.
func TestProgressBarReachesEnd(t *testing.T) {
	var out strings.Builder
	p := &Progress{out: &out, bar: newBar(&out)}
	d := &pb.DatasetStatus{Pass: 2, Passes: 2, Tasks: 4, Done: 2, SetAside: 1, Todo: 1}
	p.Show(&pb.StatusReply{Datasets: []*pb.DatasetStatus{d}})
	if strings.Contains(out.String(), "100%") {
		t.Errorf("before the end: %q", out.String())
	}
	p.ShowEnd(&pb.StatusReply{Datasets: []*pb.DatasetStatus{{Pass: 2, Tasks: 4, Done: 3, SetAside: 1}}})
	p.Finish()
	if text := out.String(); !strings.Contains(text, "100%") || !strings.HasSuffix(text, "\n") {
		t.Errorf("after the end: %q", text)
	}
}
