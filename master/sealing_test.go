package master

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"trainmaster/ledger"
)

// hungSealer is a sealer with a file system that does not answer until it is released.
type hungSealer struct {
	check, seal chan struct{} // closed: the file system answers
	sealing     atomic.Int64  // calls under way
	most        atomic.Int64  // largest number of concurrent calls
}

func (r *hungSealer) Check(context.Context, string) error {
	<-r.check
	return nil
}

func (r *hungSealer) Run(ctx context.Context, _ ledger.Lock, _ string, _ func() ledger.Progress) error {
	r.most.Store(max(r.most.Load(), r.sealing.Add(1)))
	defer r.sealing.Add(-1)
	<-r.seal
	<-ctx.Done()
	return context.Cause(ctx)
}

func (*hungSealer) Status() ledger.Status { return ledger.Status{} }

// A file system that hangs while the ledger is sealed or checked does not prevent a master from leading or from
// releasing the lock. The next term waits for the sealing of the previous term.
func TestHungFileSystemDoesNotKeepTheLock(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		sealer := &hungSealer{check: make(chan struct{}), seal: make(chan struct{})}
		m, err := New(Config{Store: store, Ledger: sealer, Log: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		answers := sync.OnceFunc(func() { close(sealer.check) })
		defer time.Sleep(time.Minute) // until all goroutines have ended
		defer close(sealer.seal)
		defer answers()
		run := func() (stop context.CancelFunc, ended chan error) {
			ctx, cancel := context.WithCancel(t.Context())
			ended = make(chan error, 1)
			go func() { ended <- m.Run(ctx) }()
			for limit := time.Now().Add(time.Minute); !m.Leading(); time.Sleep(10 * time.Millisecond) {
				if time.Now().After(limit) {
					t.Fatal("expected leadership within a minute of a hung check of the ledger")
				}
			}
			return cancel, ended
		}
		for range 2 {
			stop, ended := run()
			register(t, m, 3)
			stop()
			within(t, "end of the master", 10*time.Second, ended)
		}
		answers()
		stop, ended := run()
		sealer.seal <- struct{}{} // the sealing of the first term ends
		sealer.seal <- struct{}{} // the sealing of this term begins
		time.Sleep(time.Second)
		if n, most := sealer.sealing.Load(), sealer.most.Load(); n != 1 || most != 1 {
			t.Errorf("sealing terms: found %d, at most %d at the same time; expected one", n, most)
		}
		stop()
		within(t, "end of the master", 10*time.Second, ended)
	})
}
