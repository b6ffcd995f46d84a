package persist

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"trainmaster/pserver/checkpoint"
)

// silentJob is the job in an etcd that answers no call.
type silentJob struct{ job JobState }

func (j silentJob) Job() JobState { return j.job }

func (j silentJob) Current(ctx context.Context) (JobState, error) {
	<-ctx.Done()
	return JobState{}, ctx.Err()
}

func (j silentJob) AskSet(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// A server that is stopped while etcd does not answer ends in time, and logs that updates are lost.
func TestLastSetHasATimeLimitWhileEtcdHangs(t *testing.T) {
	log, said := logtest.NewNullLogger()
	synctest.Test(t, func(t *testing.T) {
		_, c := retiring(t, t.TempDir())
		c.log = logrus.NewEntry(log)
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		c.AwaitLastSet(ctx, silentJob{})
		if took := time.Since(began); took > lastSetLimit+time.Second {
			t.Errorf("expected the end after %v, found %v", lastSetLimit, took)
		}
		if last := said.LastEntry(); last == nil || !errors.Is(last.Data["error"].(error), context.DeadlineExceeded) {
			t.Errorf("expected a warning with the reason, found %v", last)
		}
	})
}

// countingJob counts the requests for a set of a job that names none.
type countingJob struct {
	silentJob
	asked int
}

func (j *countingJob) Current(context.Context) (JobState, error) { return JobState{Led: true}, nil }

func (j *countingJob) AskSet(context.Context) error {
	j.asked++
	return nil
}

// A request for the first set is repeated with growing pauses while the set does not follow: each request is a revision in etcd.
func TestRequestsForTheFirstSetHaveGrowingPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other, _ := retiring(t, t.TempDir())
		log, _ := logtest.NewNullLogger()
		shard, c := openEmpty(t, checkpoint.Store{Place: checkpoint.Disk(t.TempDir())}, 0, JobState{}, log)
		beginKeeping(t, shard, other.View().Model(), true)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		job := &countingJob{}
		if err := c.AwaitSet(ctx, job); err != nil {
			t.Fatal(err)
		}
		if job.asked < 10 || job.asked > 20 {
			t.Errorf("expected 10 to 20 requests in 10 minutes, found %d", job.asked)
		}
	})
}

// A set that was taken without the server has an older part of it. It does not have the later updates, although its number is greater.
func TestSetWithoutTheServerDoesNotHaveItsUpdates(t *testing.T) {
	_, c := retiring(t, t.TempDir())
	isSaved := func(number uint64, part checkpoint.Part) bool {
		t.Helper()
		text, err := (&checkpoint.Set{Job: "test", Number: number, Mode: checkpoint.Async, JobEpoch: 1, Shards: []checkpoint.Part{part}}).Encode()
		if err != nil {
			t.Fatal(err)
		}
		return c.isSaved(JobState{LatestSet: text})
	}
	var parts []checkpoint.Part
	for number := range uint64(2) {
		if _, err := c.BeginCut(number+1, 1, 1); err != nil {
			t.Fatal(err)
		}
		part, err := c.WriteCut(t.Context(), number+1, 1)
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, part)
	}
	if isSaved(3, parts[0]) {
		t.Error("a set with the part of cut 1 has updates of cut 2")
	}
	if !isSaved(3, parts[1]) {
		t.Error("a set with the part of cut 2 lacks updates")
	}
	if _, err := c.BeginCut(4, 1, 1); err != nil {
		t.Fatal(err)
	}
	if c.AbortCut(4, 1); isSaved(5, parts[1]) {
		t.Error("a set with the part of cut 2 has updates of cut 4, which was aborted")
	}
}
