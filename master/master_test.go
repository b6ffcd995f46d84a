package master_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/onetcd"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

func quiet() *logrus.Entry {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return logrus.NewEntry(l)
}

// table returns a task table with n tasks of one chunk.
func table(t testing.TB, n int) *taskqueue.Table {
	t.Helper()
	tab := taskqueue.NewTable(n)
	const perFile = 100
	for f := 0; f*perFile < n; f++ {
		var chunks []recordio.Index
		offset := int64(0)
		for range min(perFile, n-f*perFile) {
			chunks = append(chunks, recordio.Index{Offset: offset, Size: 1000, Records: 10, Layout: 1})
			offset += recordio.HeaderSize + 1000
		}
		if err := tab.Add(taskqueue.File{Path: fmt.Sprintf("/data/part-%05d", f), Size: offset}, chunks); err != nil {
			t.Fatal(err)
		}
	}
	tab.Group(1)
	return tab
}

// running is a master that a test started.
type running struct {
	*master.Master
	cancel context.CancelFunc
	done   chan error
}

func start(t testing.TB, store *etcdstore.Store, config master.Config) *running {
	t.Helper()
	config.Advertise = "127.0.0.1:1"
	m, err := master.New(config, onetcd.Store{Store: store, LeaseTTL: 2 * time.Second}, nil, quiet())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{Master: m, cancel: cancel, done: make(chan error, 1)}
	go func() { r.done <- m.Run(ctx) }()
	for !m.Leading() {
		select {
		case err := <-r.done:
			t.Fatalf("the master stopped: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	t.Cleanup(r.stop)
	return r
}

func (r *running) stop() {
	r.cancel()
	if err, ok := <-r.done; ok {
		_ = err
		close(r.done)
	}
}

// trainer takes tasks until the job is over and counts what was counted.
func trainer(ctx context.Context, r *running, id string, counted *sync.Map) error {
	s, err := r.Join(ctx, id, "")
	if err != nil {
		return err
	}
	req := taskqueue.Request{Trainer: s.Ordinal, Incarnation: s.Incarnation, Want: true}
	for {
		req.Seq++
		req.Ack = req.Seq
		sent := req
		reply, err := r.Next(ctx, &sent)
		for i, f := range reply.Finishes {
			if f == taskqueue.Counted {
				tok := req.Finished[i].Token
				if _, twice := counted.LoadOrStore([2]int{int(tok.Pass), tok.Position}, id); twice {
					return fmt.Errorf("pass %d position %d was counted twice", tok.Pass, tok.Position)
				}
			}
		}
		if errors.Is(err, master.ErrJobFinished) {
			return r.Leave(ctx, s.Ordinal, s.Incarnation)
		}
		if err != nil {
			return err
		}
		req.Finished = nil
		if reply.Assignment != nil {
			req.Finished = []taskqueue.Result{{Token: reply.Assignment.Task.Token}}
		}
	}
}

func TestJobRunsToItsEnd(t *testing.T) {
	r := start(t, etcdtest.Store(t), master.Config{Shuffle: true, Seed: 7, Queue: taskqueue.Options{Passes: 3}})
	if err := r.Register(t.Context(), table(t, 250), sha256.Sum256([]byte("a"))); err != nil {
		t.Fatal(err)
	}
	var counted sync.Map
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if err := trainer(t.Context(), r, fmt.Sprintf("t%d", i), &counted); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	n := 0
	counted.Range(func(_, _ any) bool { n++; return true })
	if n != 3*250 {
		t.Errorf("counted %d, expected %d", n, 3*250)
	}
	if err := <-r.done; err != nil {
		t.Errorf("the master ended with %v", err)
	}
	close(r.done)
}

func BenchmarkInProcess(b *testing.B) {
	store := etcdtest.Store(b)
	r := start(b, store, master.Config{Shuffle: true, Queue: taskqueue.Options{Rolling: true}})
	if err := r.Register(b.Context(), table(b, 100_000), sha256.Sum256([]byte("b"))); err != nil {
		b.Fatal(err)
	}
	for _, callers := range []int{1, 16, 64, 256, 1024} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			var left atomic.Int64
			left.Store(int64(b.N))
			var wg sync.WaitGroup
			for i := range callers {
				wg.Go(func() {
					s, err := r.Join(b.Context(), fmt.Sprintf("t%d", i), "")
					if err != nil {
						b.Error(err)
						return
					}
					req := taskqueue.Request{Trainer: s.Ordinal, Incarnation: s.Incarnation, Want: true}
					for left.Add(-1) >= 0 {
						req.Seq++
						req.Ack = req.Seq
						sent := req
						reply, err := r.Next(b.Context(), &sent)
						if err != nil {
							b.Error(err)
							return
						}
						req.Finished = nil
						if reply.Assignment != nil {
							req.Finished = []taskqueue.Result{{Token: reply.Assignment.Task.Token}}
						}
					}
				})
			}
			wg.Wait()
		})
	}
}
