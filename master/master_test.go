package master_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/mastertest"
	"trainmaster/taskqueue"
)

// Eight trainers run three passes. In the ledger each task counts once in each pass.
func TestJobRunsToItsEnd(t *testing.T) {
	store := etcdtest.Store(t)
	r := mastertest.Start(t, store, master.Config{Shuffle: true, Seed: 7, Queue: taskqueue.Options{Passes: 3}})
	r.Register(250)
	var wg sync.WaitGroup
	for i := range 8 {
		trainer := r.Join(fmt.Sprintf("t%d", i))
		wg.Go(func() {
			if err := trainer.Work(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := r.Wait(); err != nil {
		t.Errorf("end of the master: got %v", err)
	}
	wantPasses(t, mastertest.Verify(t, store), 3, 250)
}

func wantPasses(t testing.TB, reports []taskqueue.PassReport, passes, tasks int) {
	t.Helper()
	if len(reports) != passes {
		t.Fatalf("ledger: found %d passes, expected %d", len(reports), passes)
	}
	for _, p := range reports {
		if p.Tasks != tasks || p.CountedOnce != tasks {
			t.Errorf("pass %d: %d of %d tasks counted once, want %d", p.Pass, p.CountedOnce, p.Tasks, tasks)
		}
	}
}

func BenchmarkInProcess(b *testing.B) {
	r := mastertest.Start(b, etcdtest.Store(b), master.Config{Shuffle: true, Queue: taskqueue.Options{Rolling: true}})
	r.Register(100_000)
	for _, callers := range []int{1, 16, 64, 256, 1024} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			var left atomic.Int64
			left.Store(int64(b.N))
			var wg sync.WaitGroup
			for i := range callers {
				trainer := r.Join(fmt.Sprintf("t%d", i))
				wg.Go(func() {
					var finished []taskqueue.Token
					for left.Add(-1) >= 0 {
						reply, err := trainer.Next(b.Context(), finished...)
						if err != nil {
							b.Error(err)
							return
						}
						if finished = nil; reply.Assignment != nil {
							finished = []taskqueue.Token{reply.Assignment.Task.Token}
						}
					}
				})
			}
			wg.Wait()
		})
	}
}
