package persist

import (
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/pserver/checkpoint"
	core "trainmaster/pserver/shard"
)

// open makes a shard from its newest checkpoint, as the start of a server does.
func open(t testing.TB, store checkpoint.Store, index int, job JobState, log *logrus.Logger) (*core.Shard, *Checkpoints) {
	t.Helper()
	s, c := openEmpty(t, store, index, job, log)
	if err := c.Restore(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	return s, c
}

// openEmpty is open without a set to load.
func openEmpty(t testing.TB, store checkpoint.Store, index int, job JobState, log *logrus.Logger) (*core.Shard, *Checkpoints) {
	t.Helper()
	c, err := Open(t.Context(), Options{Store: store, Index: index, Job: job, CutLimit: time.Minute, Log: logrus.NewEntry(log)})
	if err != nil {
		t.Fatal(err)
	}
	s := core.New(nil, index, uint16(c.Start()), time.Minute, 1<<30)
	s.JobID = job.ID
	c.shard = s
	return s, c
}
