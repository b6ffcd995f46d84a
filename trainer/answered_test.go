package trainer_test

import (
	"sync"
	"testing"
	"time"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/mastertest"
	"trainmaster/trainer"
)

// The Answered callback receives each answer with its master and the total time of all attempts.
func TestAnsweredReceivesEachCall(t *testing.T) {
	const away = 100 * time.Millisecond
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{ChunksPerTask: 1})
	follow := trainer.NewFollow()
	time.AfterFunc(away, func() { follow.Set(r.Addr, 1) })
	var mu sync.Mutex
	heard := map[string]trainer.Answer{}
	c, err := trainer.Join(within(t), trainer.Config{ID: "a", Locate: follow, Answered: func(a trainer.Answer) {
		mu.Lock()
		defer mu.Unlock()
		heard[a.Call] = a
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.ReportDataset(within(t), files(t, 1)); err != nil {
		t.Fatal(err)
	}
	next(t, c, nil)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, call := range []string{"Join", "ReportDataset", "Next", "Leave"} {
		if a := heard[call]; a.Call != call || a.Master != r.Addr || a.Took <= 0 {
			t.Errorf("%s: got %+v", call, a)
		}
	}
	if a := heard["Join"]; a.Took < away {
		t.Errorf("Join: found a time of %v, expected at least %v, the time without a master", a.Took, away)
	}
}
