package main

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"trainmaster/cmd/internal/admin"
	"trainmaster/cmd/internal/view"
	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

// lineChannel receives what a progress writes, line by line.
type lineChannel chan string

func (l lineChannel) Write(b []byte) (int, error) {
	l <- string(b)
	return len(b), nil
}

// Progress is that of whichever master leads, before there is one and after it is gone.
func TestWatchJob(t *testing.T) {
	config := master.Config{Queue: taskqueue.Options{Passes: 1}}
	l := lead(t, config)
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	out := make(lineChannel, 1000)
	watching.Go(func() {
		admin.WatchJob(ctx, etcdstore.Config{Endpoints: []string{etcdtest.Endpoint(t)}, Job: l.job}, view.NewProgress(out, "", nil))
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
	out := make(lineChannel, 10)
	p := view.NewProgress(out, "", nil)
	p.Show(&pb.StatusReply{Datasets: []*pb.DatasetStatus{{Pass: 1, Passes: 2, Tasks: 3}}})
	if first := <-out; !strings.HasPrefix(first, "pass 1/2 ") {
		t.Errorf("the first line is %q", first)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	admin.FollowJob(ctx, admin.LeaderOf(l.store, etcdstore.Config{Job: l.job}), p)
	close(out)
	if last := <-out; last != "pass 2/2  tasks 3 done 0 pending 0 todo\n" {
		t.Errorf("the last line is %q", last)
	}
}
