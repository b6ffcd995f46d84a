package taskqueue

import (
	"slices"
	"testing"
	"time"
)

// datasetQueue returns a queue with a dataset of n tasks.
func datasetQueue(t *testing.T, n int, opt Options) *Queue {
	t.Helper()
	q := New("j", [16]byte{1}, 1, opt)
	if a := q.Apply(1, &Report{ReportID: "r", Table: tableOf(t, n), Parts: 1}); a.Err != nil {
		t.Fatal(a.Err)
	}
	q.Ready()
	return q
}

// A quick first task sets the timeout to its minimum, 30 s. Tasks of 40 s follow. Without
// learning from late finishes, 9 of these 10 sound tasks are set aside.
func TestSlowTasksOnPlainConnectionsAreCounted(t *testing.T) {
	for _, connections := range []int{1, 2, 3} {
		q := datasetQueue(t, 10, Options{Passes: 1})
		now := q.Clock()
		type client struct {
			name  string
			last  Answer
			until Clock
		}
		var clients []*client
		for i := range connections {
			clients = append(clients, &client{name: string(rune('a' + i))})
		}
		trained, first := 0, true
		for range 1000 {
			for i, c := range clients {
				if now < c.until {
					continue
				}
				ask := &PlainAsk{Trainer: c.last.Ordinal, Incarnation: c.last.Incarnation, Connection: c.name, Want: true}
				if c.last.Kind == AnswerTask {
					ask.Finished, ask.Index, ask.Token = true, c.last.Index, c.last.Token
					trained++
				}
				c.last = q.Apply(now, ask)
				c.until = now.Add(40*time.Second + time.Duration(i)*3*time.Second)
				if first {
					c.until, first = now.Add(time.Second), false
				}
			}
			now = now.Add(time.Second)
			q.Apply(now, &Tick{})
			q.Ready()
		}
		status, _ := q.Status()
		v := q.Overview().Sets[0]
		if status != Ended || v.SetAside > 0 || v.Done != 10 {
			t.Errorf("%d connections: job %v with %d tasks counted and %d set aside, expected 10 and 0", connections, status, v.Done, v.SetAside)
		}
		if trained > 10 {
			t.Errorf("%d connections: 10 tasks were trained %d times, expected 10", connections, trained)
		}
	}
}

// Joined trainers report progress on tasks of 400 s. A quick first task set the hard deadline to 300 s. Without
// learning from late finishes, these 20 tasks are trained 37 times.
func TestSlowTasksOfJoinedTrainersAreTrainedAboutOnce(t *testing.T) {
	q := datasetQueue(t, 20, Options{Passes: 1})
	now := q.Clock()
	type client struct {
		ordinal     Ordinal
		incarnation uint64
		seq         uint64
		token       Token
		holds       bool
		until       Clock
	}
	var clients []*client
	for _, id := range []string{"a", "b", "c"} {
		a := q.Apply(now, &Join{ID: id})
		clients = append(clients, &client{ordinal: a.Ordinal, incarnation: a.Incarnation})
	}
	trained, first, status := 0, true, Running
	for n := 0; n < 20_000 && status == Running; n++ {
		for _, c := range clients {
			if c.holds && now < c.until {
				q.Apply(now, &Heartbeat{Trainer: c.ordinal, Incarnation: c.incarnation, Moving: []Token{c.token}})
				continue
			}
			c.seq++
			r := &Request{Trainer: c.ordinal, Incarnation: c.incarnation, Seq: c.seq, Ack: c.seq, Want: true}
			if c.holds {
				r.Finished = []Result{{Token: c.token}}
				trained++
			}
			a := q.Apply(now, r)
			if c.holds = a.Kind == AnswerTask; c.holds {
				c.token, c.until = a.Token, now.Add(400*time.Second)
				if first {
					c.until, first = now.Add(time.Second), false
				}
			}
		}
		now = now.Add(time.Second)
		q.Apply(now, &Tick{})
		q.Ready()
		status, _ = q.Status()
	}
	v := q.Overview().Sets[0]
	if status != Ended || v.Done != 20 || v.SetAside > 0 {
		t.Fatalf("job %v with %d of 20 tasks counted and %d set aside", status, v.Done, v.SetAside)
	}
	if trained > 23 {
		t.Errorf("20 tasks were trained %d times, expected at most one more for each of 3 trainers", trained)
	}
	if v.Timeout < 400*time.Second {
		t.Errorf("the timeout is %v after tasks of 400 s", v.Timeout)
	}
}

// One task takes 180 s, all others 1 s, and the other trainers wait. With the same timeout of 30 s for each attempt,
// the task fails four times within 120 s and the job ends without it.
func TestSlowestTaskIsNotSetAside(t *testing.T) {
	q := datasetQueue(t, 20, Options{Passes: 1})
	now := q.Clock()
	type client struct {
		name  string
		last  Answer
		until Clock
	}
	clients := []*client{{name: "a"}, {name: "b"}, {name: "c"}, {name: "d"}, {name: "e"}}
	for range 1000 {
		for _, c := range clients {
			if now < c.until {
				continue
			}
			ask := &PlainAsk{Trainer: c.last.Ordinal, Incarnation: c.last.Incarnation, Connection: c.name, Want: true}
			if c.last.Kind == AnswerTask {
				ask.Finished, ask.Index, ask.Token = true, c.last.Index, c.last.Token
			}
			c.last = q.Apply(now, ask)
			c.until = now.Add(time.Second)
			if c.last.Kind == AnswerTask && c.last.Index == 13 {
				c.until = now.Add(180 * time.Second)
			}
		}
		now = now.Add(time.Second)
		q.Apply(now, &Tick{})
		q.Ready()
	}
	status, _ := q.Status()
	if v := q.Overview().Sets[0]; status != Ended || v.Done != 20 || v.SetAside > 0 {
		t.Errorf("job %v with %d tasks counted and %d set aside, expected 20 and 0", status, v.Done, v.SetAside)
	}
}

// A client that reuses its reply has read another chunk of the file: its late finish does not count. A finish with the offsets of the task does.
func TestLateFinishOfAnotherChunkIsStale(t *testing.T) {
	q := datasetQueue(t, 2, Options{Passes: 1})
	now := q.Clock()
	q.Apply(now, &PlainAsk{Connection: "a", Want: true})
	got := q.Apply(now, &PlainAsk{Connection: "b", Want: true}) // its chunk does not begin at 0
	now = now.Add(time.Hour)
	q.Apply(now, &Tick{})
	chunks := q.Table(0).TaskChunks(got.Index)
	read := OffsetsOf(len(chunks), func(i int) int64 { return chunks[i].Index.Offset })
	for _, test := range []struct {
		offsets uint64
		status  FinishStatus
	}{{read + 1, Stale}, {read, Counted}} {
		a := q.Apply(now, &PlainAsk{Trainer: got.Ordinal, Incarnation: got.Incarnation, Connection: "b", Finished: true, Index: got.Index, Offsets: test.offsets, Result: Result{Token: got.Token}})
		if !slices.Equal(a.Finishes, []FinishStatus{test.status}) {
			t.Errorf("offsets %d of %d: found %v, expected %v", test.offsets, read, a.Finishes, test.status)
		}
	}
}
