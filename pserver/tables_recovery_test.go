package pserver_test

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"trainmaster/pserver"
	"trainmaster/pserver/optimizer"
	"trainmaster/trainer/params"
)

var tablesAdam = params.Optimizer{Kind: optimizer.Adam}

// F50 and F54, for tables: a server is killed after every single step of writing a full and an incremental checkpoint. The next start
// finds a complete checkpoint, and the pushes that the trainer repeats are applied once.
func TestKilledAtEveryStepOfACheckpointWithTables(t *testing.T) {
	ids, grads := rowBatch(1, 50, users.Dim)
	after := func(pushes int) []float32 {
		r := newReference(t, users, tablesAdam)
		for step := range pushes {
			r.push(t, 0, uint64(step)+1, ids, slices.Clone(grads))
		}
		return r.values(everyID(50))
	}
	cfg := params.Config{Mode: params.Async, Optimizer: tablesAdam, Incarnation: 7, Tables: []params.Table{users, words}}
	for dieAt, done := 1, false; !done; dieAt += killStride {
		dir, b := t.TempDir(), newBook(1)
		victim := startChild(t, b, childConfig{Dir: dir, DieAt: dieAt})
		before := pushUntilGone(t, b, cfg, victim, ids, grads)
		done = victim.cmd.ProcessState.ExitCode() == 0 // it came to its end

		heir := startServer(t, b, 0, pserver.Config{CheckpointDir: dir})
		c := connect(t, b, cfg)
		if err := c.Init(within(t), little()); err != nil {
			t.Fatalf("killed at step %d (%v): %v", dieAt, victim.steps, err)
		}
		restored := 0
		if before != nil && !bytes.Equal(b.state().LatestSet, before) {
			restored = 1
		}
		if got := rowsOf(t, c, users, everyID(50), 0); !slices.Equal(got, after(restored)) {
			t.Fatalf("killed at step %d, after %q: other rows than after %d pushes were restored", dieAt, last(victim.steps), restored)
		}
		for step := range 2 { // the first push is a repetition
			if err := c.PushRows(within(t), "users", uint64(step)+1, 1, ids, grads); err != nil {
				t.Fatal(err)
			}
			if got := rowsOf(t, c, users, everyID(50), 0); !slices.Equal(got, after(step+1)) {
				t.Fatalf("killed at step %d, after %q: other rows after push %d", dieAt, last(victim.steps), step+1)
			}
		}
		c.Close()
		heir.leave(t)
		if done {
			t.Logf("%d steps, the last is %q", dieAt-1, last(victim.steps))
		}
	}
}

// pushUntilGone sets the parameters, pushes step 1, and stops the server, which dies at the given step. It returns the latest set at
// the end of the push, nil if the server died before.
func pushUntilGone(t testing.TB, b *book, cfg params.Config, victim *child, ids []int64, grads []float32) (before []byte) {
	t.Helper()
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	go func() {
		<-victim.gone
		cancel()
	}()
	cfg.Addrs, cfg.Log = b.complete, quiet()
	c, err := params.Connect(ctx, cfg)
	if err == nil {
		defer c.Close()
		if err = c.Init(ctx, little()); err == nil {
			err = c.PushRows(ctx, "users", 1, 1, ids, grads)
		}
		if err == nil {
			before = b.state().LatestSet
		}
	}
	if err != nil && ctx.Err() == nil {
		t.Fatal(err)
	}
	victim.terminate()
	return before
}

// Servers are killed repeatedly while trainers push rows. The trainers see no errors, no row is torn, and each row has
// the pushes up to a checkpoint and the later pushes, never more than were sent.
func TestTableTrainersContinueWhenServersAreKilled(t *testing.T) {
	const trainers, kills, rows = 2, 4, 3000
	count := params.Table{Name: "count", Dim: 8, Init: params.Zeros}
	dir, b := t.TempDir(), newBook(2)
	start := func(index int) *child {
		return startChild(t, b, childConfig{Dir: dir, Index: index})
	}
	children := []*child{start(0), start(1)}
	stop := make(chan struct{})
	var group sync.WaitGroup
	ctx := within(t)
	taken := newSetTaker(t, b)
	group.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				taken.take(ctx) //nolint:errcheck // servers are killed during the call
			}
		}
	})
	pushed := make([]uint64, trainers)
	for ordinal := range trainers {
		group.Go(func() {
			c := connect(t, b, params.Config{Mode: params.Async, Ordinal: uint32(ordinal), Tables: []params.Table{count}})
			if err := c.Init(ctx, little()); err != nil {
				t.Error(err)
				return
			}
			for step := uint64(1); ; step++ {
				select {
				case <-stop:
					return
				default:
				}
				if err := c.PushRows(ctx, "count", step, 1, everyID(rows), slices.Repeat([]float32{-2}, rows*count.Dim)); err != nil {
					t.Errorf("trainer %d, step %d: %v", ordinal, step, err)
					return
				}
				pushed[ordinal] = step
			}
		})
	}
	for kill := range kills {
		victim := children[kill%2]
		for want := victim.did("parent synced") + 3; victim.did("parent synced") < want; { // checkpoints with changes among them
			select {
			case <-ctx.Done():
				t.Fatal("no checkpoint was written")
			case <-time.After(time.Millisecond):
			}
		}
		victim.kill()
		children[kill%2] = start(kill % 2)
	}
	close(stop)
	group.Wait()
	c := connect(t, b, params.Config{Mode: params.Async, Ordinal: trainers, Tables: []params.Table{count}})
	if err := c.Init(ctx, little()); err != nil {
		t.Fatal(err)
	}
	got := rowsOf(t, c, count, everyID(rows), 0)
	most := float32(pushed[0] + pushed[1])
	for k := range rows {
		row := got[k*count.Dim : (k+1)*count.Dim]
		if row[0] <= 0 || row[0] > most || row[0] != float32(int(row[0])) || slices.ContainsFunc(row, func(v float32) bool { return v != row[0] }) {
			t.Fatalf("row %d is %v after %v pushes", k-3, row, most)
		}
	}
}
