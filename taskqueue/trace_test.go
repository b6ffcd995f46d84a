package taskqueue

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"trainmaster/recordio"
)

// The tracer follows each task through the passes: its holders, their results and the commits of both.
func TestTracer(t *testing.T) {
	commits := jobLedger(t)
	at := func(c uint64) time.Time { return time.UnixMilli(1_700_000_000_000 + int64(c)) }
	trace := func(index int, from Outline) *Tracer {
		tr := NewTracer(0, index, from)
		for _, c := range commits {
			if c.number <= from.Commit {
				continue
			}
			if err := tr.Add(c.number, StampEvents(c.write(), at(c.number))); err != nil {
				t.Fatal(err)
			}
		}
		return tr
	}
	o := newOrder(orderIdentity, 42, 1, 6)
	for index := range 6 {
		var want []TracedPass // computed by a plain walk over the events
		for _, c := range commits {
			now := Moment{c.number, at(c.number).UnixMilli()}
			for _, ev := range c.events {
				switch ev.Kind {
				case EventReported:
					o = newOrder(ev.Algorithm, ev.Seed, 1, ev.Tasks)
				case EventDispatched, EventFinished, EventFailed, EventSetAside:
					if o = newOrder(commits[0].events[0].Algorithm, 42, ev.Pass, 6); o.position(index) != ev.Position {
						continue
					}
					if len(want) == 0 || want[len(want)-1].Pass != ev.Pass {
						want = append(want, TracedPass{Pass: ev.Pass})
					}
					p := &want[len(want)-1]
					switch ev.Kind {
					case EventDispatched:
						p.Deliveries = append(p.Deliveries, Delivery{Attempt: ev.Attempt, Trainer: ev.Trainer, Dispatched: now})
					case EventSetAside:
						p.SetAside = now
					default:
						d := &p.Deliveries[len(p.Deliveries)-1]
						d.Outcome, d.Settled = ev.Kind, now
					}
				}
			}
		}
		tr := trace(index, Outline{})
		if !reflect.DeepEqual(tr.Passes(), want) {
			t.Errorf("task %d:\n got      %+v\n expected %+v", index, tr.Passes(), want)
		}
		counted := 0
		for _, p := range tr.Passes() {
			if d := p.Counted(); d != nil {
				counted++
				if id, ok := tr.Name(d.Trainer); !ok || id != "a" {
					t.Errorf("task %d is counted for %q", index, id)
				}
			}
		}
		if wanted := map[bool]int{true: 1, false: 2}[index == 2]; counted != wanted { // set aside in the first pass
			t.Errorf("task %d is counted %d times, expected %d", index, counted, wanted)
		}
	}

	before := NewVerifier()
	for _, c := range commits {
		if err := before.Add(c.number, c.write()); err != nil {
			t.Fatal(err)
		}
		if c.events[0].Kind == EventDispatched {
			break
		}
	}
	resumed := trace(1, before.Outline())
	if len(resumed.Passes()) != 2 || resumed.Passes()[1].Counted() == nil {
		t.Errorf("resumed from commit %d: got %+v", before.Last(), resumed.Passes())
	}
	if _, ok := resumed.Name(1); ok {
		t.Error("name of an unread part of the ledger: expected none")
	}
}

func TestFindRecord(t *testing.T) {
	table := NewTable(6)
	index := func(records ...uint32) (list []recordio.Index) {
		offset := int64(0)
		for _, n := range records {
			list = append(list, recordio.Index{Offset: offset, Size: 100, Records: n, Layout: recordio.First})
			offset = list[len(list)-1].End()
		}
		return list
	}
	{
		if err := table.Add(File{Path: "/a"}, index(10, 1, 5)); err != nil {
			t.Fatal(err)
		}
		if err := table.Add(File{Path: "/b"}, index(4)); err != nil {
			t.Fatal(err)
		}
	}
	table.Group(2)
	for _, tt := range []struct {
		path                  string
		n                     int64
		task, chunk, recordIn int
	}{{"/a", 0, 0, 0, 0}, {"/a", 9, 0, 0, 9}, {"/a", 10, 0, 1, 0}, {"/a", 11, 1, 2, 0}, {"/a", 15, 1, 2, 4}, {"/b", 0, 1, 0, 0}, {"/b", 3, 1, 0, 3}} {
		got, err := table.FindRecord(tt.path, tt.n)
		if err != nil || got.Task != tt.task || got.Chunk.Idx != tt.chunk || got.Chunk.Path != tt.path || got.In != tt.recordIn {
			t.Errorf("%s:%d: %+v, %v", tt.path, tt.n, got, err)
		}
	}
	for path, n := range map[string]int64{"/a": 16, "/b": 4, "/c": 0} {
		if _, err := table.FindRecord(path, n); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s:%d: %v", path, n, err)
		}
	}
}
