package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"trainmaster/cmd/internal/cli"
	"trainmaster/cmd/internal/view"
	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/taskqueue"
)

func TestQueues(t *testing.T) {
	l := lead(t, master.Config{Queue: taskqueue.Options{MaxFailures: 1}})
	l.report(50)
	a, b := l.join("a"), l.join("b")
	poison := a.take()
	second := a.take(fail(poison, "record 3\nis torn"))
	held := a.take(fail(second, "record 3 is torn again"))
	back := b.take()
	if err := l.Leave(t.Context(), b.req.Trainer, b.req.Incarnation); err != nil {
		t.Fatal(err)
	}
	prefetched := a.take() // what b gave back

	r := runArgs(t, append([]string{"queues", "-o", "json"}, l.etcd...)...)
	r.wants(t, cli.ExitOK)
	q := decode[view.Queues](t, r.stdout)
	d := q.Datasets[0]
	if want := (view.TaskCounts{Tasks: 50, Todo: 47, Pending: 2, SetAside: 1}); q.Job != l.job || q.Status != "running" || d.Counts != want || d.Cursor != 3 || d.Pass != 1 {
		t.Errorf("counts: %+v, want %+v", d, want)
	}
	if prefetched.Index != back.Index {
		t.Fatalf("task %d was given, want %d, which was given back", prefetched.Index, back.Index)
	}
	if len(d.Pending) != 2 || d.Pending[0].Task != uint64(held.Index) || d.Pending[1].Task != uint64(back.Index) || d.Pending[1].Attempt != 2 ||
		len(d.Pending[0].Holders) != 1 || d.Pending[0].Holders[0].Trainer != "a" || d.Pending[0].Holders[0].Prefetched || !d.Pending[1].Holders[0].Prefetched {
		t.Errorf("pending: %+v", d.Pending)
	}
	if len(d.Retry) != 0 {
		t.Errorf("retry: %+v", d.Retry)
	}
	if want := (view.SetAsideTask{Task: uint64(poison.Index), Pass: 1, Failures: 2, Holder: "a", Error: "record 3 is torn again"}); len(d.SetAside) != 1 || d.SetAside[0] != want {
		t.Errorf("set aside: %+v, want %+v", d.SetAside, want)
	}

	if err := l.Leave(t.Context(), a.req.Trainer, a.req.Incarnation); err != nil {
		t.Fatal(err)
	}
	table := runArgs(t, "queues", "--addr", l.addr, "--limit", "1")
	table.wants(t, cli.ExitOK)
	for _, want := range []string{"\nretry  ", "... and 1 more to be retried (--limit 0 shows all)", "SET ASIDE  PASS", "record 3 is torn again\n"} {
		if !strings.Contains(table.stdout, want) {
			t.Errorf("the table lacks %q:\n%s", want, table.stdout)
		}
	}
	runArgs(t, "queues", "--limit", "-1", "--addr", l.addr).wants(t, cli.ExitUsage, "--limit")
}

// More tasks than a page of the service has.
func TestQueuesOfManyPages(t *testing.T) {
	l := lead(t, master.Config{Queue: taskqueue.Options{SessionTTL: time.Hour}}) // no trainer sends heartbeats here
	l.report(2000)
	want := map[uint64]bool{}
	for i := range 700 {
		s := l.join(fmt.Sprintf("t%d", i))
		want[uint64(s.take().Index)] = true
	}
	r := runArgs(t, append([]string{"queues", "-o", "json"}, l.etcd...)...)
	r.wants(t, cli.ExitOK)
	found := map[uint64]bool{}
	for _, task := range decode[view.Queues](t, r.stdout).Datasets[0].Pending {
		found[task.Task] = true
	}
	if !maps.Equal(found, want) {
		t.Errorf("%d tasks were listed, want the %d that are dispatched", len(found), len(want))
	}
}

// tally keeps the expected lists of one pass, by the answers to the trainers.
type tally struct {
	tasks   int
	pending map[int]bool
	done    map[int]bool
	aside   map[int]bool
}

func (g *tally) compare(t *testing.T, what string, d view.LiteralDataset) {
	t.Helper()
	indices := func(entries []view.LiteralEntry) []int {
		var list []int
		for _, e := range entries {
			list = append(list, e.Task)
		}
		slices.Sort(list)
		return list
	}
	var todo, aside []int
	for task := range g.tasks {
		if !g.pending[task] && !g.done[task] && !g.aside[task] {
			todo = append(todo, task)
		}
	}
	for _, task := range d.SetAside {
		aside = append(aside, int(task.Task))
	}
	for _, list := range []struct {
		name        string
		found, want []int
	}{
		{"todo", indices(d.Todo), todo},
		{"pending", indices(d.Pending), slices.Sorted(maps.Keys(g.pending))},
		{"done", indices(d.Done), slices.Sorted(maps.Keys(g.done))},
		{"set aside", aside, slices.Sorted(maps.Keys(g.aside))},
	} {
		if !slices.Equal(list.found, list.want) {
			t.Errorf("%s: %s: found %v, want %v", what, list.name, list.found, list.want)
		}
	}
}

// After every event, the state decoded from etcd equals the running queue and a simple tally.
func TestLiteralQueues(t *testing.T) {
	const tasks = 12
	l := lead(t, master.Config{Shuffle: true, Seed: 3, Queue: taskqueue.Options{Passes: 2, MaxFailures: 1}})
	l.report(tasks)
	fresh := func() *tally {
		return &tally{tasks: tasks, pending: map[int]bool{}, done: map[int]bool{}, aside: map[int]bool{}}
	}
	g := fresh()
	check := func(what string) {
		t.Helper()
		r := runArgs(t, append([]string{"queues", "--literal", "-o", "json"}, l.etcd...)...)
		r.wants(t, cli.ExitOK)
		q := decode[view.LiteralQueues](t, r.stdout)
		g.compare(t, what, q.Datasets[0])
		running, err := l.TaskQueues(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		pending := make([]taskqueue.TaskEntry, 0, len(running.Pending))
		for _, task := range slices.Sorted(maps.Keys(running.Pending)) {
			pending = append(pending, running.Pending[task])
		}
		for name, lists := range map[string][2][]view.LiteralEntry{
			"todo":    {q.Datasets[0].Todo, view.LiteralEntries(running.Todo)},
			"pending": {q.Datasets[0].Pending, view.LiteralEntries(pending)},
			"done":    {q.Datasets[0].Done, view.LiteralEntries(running.Done)},
		} {
			if found, want := fmt.Sprint(lists[0]), fmt.Sprint(lists[1]); found != want {
				t.Errorf("%s: %s: decoded %s\nthe running queue has %s", what, name, found, want)
			}
		}
		if t.Failed() {
			t.FailNow()
		}
	}

	check("reported")
	a, b := l.join("a"), l.join("b")
	check("joined")
	x, y := a.take(), b.take()
	g.pending[x.Index], g.pending[y.Index] = true, true
	check("dispatched")
	for range 2 {
		z := a.take(finish(x))
		delete(g.pending, x.Index)
		g.done[x.Index], g.pending[z.Index] = true, true
		check("finished")
		x = z
	}
	if _, err := b.send(false, fail(y, "once")); err != nil {
		t.Fatal(err)
	}
	delete(g.pending, y.Index)
	check("failed")
	again := b.take()
	if again.Index != y.Index || again.Token.Attempt != 2 {
		t.Fatalf("given %v, want task %d again", again, y.Index)
	}
	g.pending[y.Index] = true
	check("retried")
	if _, err := b.send(false, fail(again, "twice")); err != nil {
		t.Fatal(err)
	}
	delete(g.pending, y.Index)
	g.aside[y.Index] = true
	check("set aside")
	prefetched := a.take()
	g.pending[prefetched.Index] = true
	check("prefetched")
	if err := l.Leave(t.Context(), a.req.Trainer, a.req.Incarnation); err != nil {
		t.Fatal(err)
	}
	g.pending = map[int]bool{}
	check("left")
	for len(g.done)+len(g.aside) < tasks-1 {
		task := b.take()
		g.pending[task.Index] = true
		check("the rest, dispatched")
		if _, err := b.send(false, finish(task)); err != nil {
			t.Fatal(err)
		}
		delete(g.pending, task.Index)
		g.done[task.Index] = true
		check("the rest, finished")
	}
	task := b.take()
	if _, err := b.send(false, finish(task)); err != nil {
		t.Fatal(err)
	}
	aside := g.aside
	g = fresh()
	g.aside = aside
	check("the next pass")

	l.stop()
	r := runArgs(t, append([]string{"queues", "--literal", "--limit", "3"}, l.etcd...)...)
	r.wants(t, cli.ExitOK)
	for _, want := range []string{"dataset 0, pass 2, cursor ", "todo       11  ", " ...\n", "pending    0   \n", "set aside  1   ", "twice"} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("with no master, the table lacks %q:\n%s", want, r.stdout)
		}
	}
}

// A directory without an etcd stays without one.
func TestLiteralFromAFolder(t *testing.T) {
	empty := t.TempDir()
	for _, dir := range []string{filepath.Join(empty, "nothing"), empty} {
		for _, args := range [][]string{{"queues", "--literal"}, {"verify"}} {
			runArgs(t, append(args, "--data-dir", dir)...).wants(t, cli.ExitUsage, "--data-dir", dir, "--endpoints")
		}
	}
	if entries, err := os.ReadDir(empty); err != nil || len(entries) > 0 {
		t.Errorf("the directory has %v now, %v", entries, err)
	}
}

// A state that does not decode is reported and left as it is.
func TestLiteralOfADamagedState(t *testing.T) {
	store := etcdtest.Store(t)
	flags := []string{"--endpoints", etcdtest.Endpoint(t), "--job", strings.TrimPrefix(store.Prefix(), "/jobs/")}
	good, err := etcdstore.Encode(taskqueue.New("x", [16]byte{1}, 1, taskqueue.Options{}).Snapshot(1, 1))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string][]byte{"cut short": good[:len(good)/2], "a flipped bit": append(slices.Clone(good[:20]), append([]byte{good[20] ^ 1}, good[21:]...)...)} {
		if _, err := store.Client().Put(t.Context(), store.Prefix()+"/task_queues", string(value)); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"queues", "--literal"}, {"verify"}} {
			r := runArgs(t, append(args, flags...)...)
			if r.code != cli.ExitFailed || !strings.Contains(r.stderr, "corrupt") {
				t.Errorf("%s, %v: exit code %d: %s", name, args, r.code, r.stderr)
			}
		}
	}
}
