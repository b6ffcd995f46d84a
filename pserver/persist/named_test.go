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
