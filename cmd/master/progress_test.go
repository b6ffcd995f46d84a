package main

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
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
	p := progress{out: out}
	p.show(&pb.StatusReply{})
	p.show(&pb.StatusReply{Registration: &pb.Registration{Step: "indexing the dataset", Done: 1, Total: 10_000}})
	p.registering = p.registering.Add(-plainEvery)
	p.show(&pb.StatusReply{Registration: &pb.Registration{Step: "indexing the dataset", Done: 3201, Total: 10_000}})
	if line := <-out; line != "indexing the dataset: 3,201 of 10,000\n" {
		t.Errorf("%q", line)
	}
}

func TestProgressWithoutTrainersNamesLogOnce(t *testing.T) {
	out := make(lines, 10)
	p := progress{out: out, trainerLog: "logs/trainer-0.log", lines: time.Now().Add(time.Hour)} // no other lines
	status := func(pending uint64) *pb.StatusReply {
		return &pb.StatusReply{Status: pb.JobStatus_JOB_STATUS_RUNNING, Datasets: []*pb.DatasetStatus{{Pass: 1, Passes: 1, Tasks: 4, Pending: pending, Todo: 4 - pending}}}
	}
	p.show(status(0))
	p.show(status(1)) // a trainer has a task
	p.show(status(0))
	p.show(status(0))
	if len(out) > 0 {
		t.Fatalf("printed %q within the first minute", <-out)
	}
	for range 2 {
		p.idle = time.Now().Add(-idleAfter)
		p.show(status(0))
	}
	if len(out) != 1 {
		t.Fatalf("printed %d lines, want 1", len(out))
	}
	if line := <-out; !strings.Contains(line, "logs/trainer-0.log") {
		t.Errorf("printed %q", line)
	}
}

// Progress is that of whichever master leads, before there is one and after it is gone.
func TestWatchJob(t *testing.T) {
	config := master.Config{Queue: taskqueue.Options{Passes: 1}}
	l := lead(t, config)
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	out := make(lines, 1000)
	watching.Go(func() {
		watchJob(ctx, etcdstore.Config{Endpoints: []string{etcdtest.Endpoint(t)}, Job: l.job}, &progress{out: out})
	})
	defer watching.Wait()
	defer cancel()
	await := func(want string) {
		t.Helper()
		for limit := time.After(time.Minute); ; {
			select {
			case line := <-out:
				if strings.Contains(line, want) {
					return
				}
			case <-limit:
				t.Fatalf("no line with %q", want)
			}
		}
	}
	l.report(10)
	await("pass 1/1  tasks 0 done 0 pending 10 todo")
	l.stop()
	next := leadJob(t, l.store, config)
	next.join("a").take()
	await("pass 1/1  tasks 0 done 1 pending 9 todo")
}

// The last of a progress is the whole job, even if its master left before it was asked.
func TestProgressEndsWithWholeJob(t *testing.T) {
	l := lead(t, master.Config{Queue: taskqueue.Options{Passes: 2}})
	l.report(3)
	a := l.join("a")
	task := a.take()
	for range 5 {
		task = a.take(finish(task))
	}
	if _, err := a.send(false, finish(task)); err != nil {
		t.Fatal(err)
	}
	l.stop()
	out := make(lines, 10)
	p := &progress{out: out, lines: time.Now(), passes: 2} // a line was drawn a moment ago
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	followJob(ctx, &leader{place: place{etcd: &etcdstore.Config{Job: l.job}}, store: l.store, close: func() {}}, p)
	close(out)
	if last := <-out; last != "pass 2/2  tasks 3 done 0 pending 0 todo\n" {
		t.Errorf("the last line is %q", last)
	}
}

// On a terminal the bar of a job that has ended stays, and is full.
func TestProgressBarReachesEnd(t *testing.T) {
	var out strings.Builder
	p := &progress{out: &out, bar: newBar(&out)}
	d := &pb.DatasetStatus{Pass: 2, Passes: 2, Tasks: 4, Done: 2, SetAside: 1, Todo: 1}
	p.show(&pb.StatusReply{Datasets: []*pb.DatasetStatus{d}})
	if strings.Contains(out.String(), "100%") {
		t.Errorf("before the end: %q", out.String())
	}
	p.showEnd(&pb.StatusReply{Datasets: []*pb.DatasetStatus{{Pass: 2, Tasks: 4, Done: 3, SetAside: 1}}})
	p.finish()
	if text := out.String(); !strings.Contains(text, "100%") || !strings.HasSuffix(text, "\n") {
		t.Errorf("after the end: %q", text)
	}
}
