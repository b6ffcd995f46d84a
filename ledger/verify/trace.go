package verify

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"trainmaster/ledger"
	"trainmaster/taskqueue"
)

// Trace has the dispatches of the task of one record in each pass.
type Trace struct {
	Path    string      `json:"path"`
	Record  int64       `json:"record"` // of the file, from 0
	Dataset int         `json:"dataset"`
	Task    int         `json:"task"`
	Chunk   int         `json:"chunk"`  // of the file, from 0
	Offset  int64       `json:"offset"` // of the chunk
	Kept    uint64      `json:"kept_from_commit"`
	Passes  []TracePass `json:"passes"`
}

// TracePass is what happened to a record in a pass.
type TracePass struct {
	Pass       taskqueue.Pass `json:"pass"`
	Outcome    string         `json:"outcome"` // one of counted set_aside abandoned pending retry not_kept
	Trainer    string         `json:"trainer"` // whose training was counted
	Deliveries []Delivery     `json:"deliveries"`
}

// Delivery is one dispatch of the task of a record.
type Delivery struct {
	Attempt          taskqueue.Attempt `json:"attempt"`
	Trainer          string            `json:"trainer"`
	Dispatched       string            `json:"dispatched"` // when: RFC 3339, UTC; empty: in a part of the ledger that is not kept
	DispatchedCommit uint64            `json:"dispatched_commit"`
	Outcome          string            `json:"outcome"` // counted, returned, failed, timed_out, pending
	Settled          string            `json:"settled"` // time of the outcome
	SettledCommit    uint64            `json:"settled_commit"`
}

// deliveryOutcomes maps the event that ended an attempt to its name.
var deliveryOutcomes = map[taskqueue.EventKind]string{
	0: "pending", taskqueue.EventFinished: "counted", taskqueue.EventApplied: "uncommitted", taskqueue.EventReturned: "returned", taskqueue.EventFailed: "failed", taskqueue.EventTimedOut: "timed_out",
}

// Read adds the dispatches of the record from the ledger up to a stored state. queue has the trainers with a session.
func (r *Trace) Read(ctx context.Context, queue *taskqueue.Queue, reader *ledger.Reader, state *taskqueue.Snapshot) error {
	tracer := taskqueue.NewTracer(r.Dataset, r.Task, reader.Outline())
	found := false
	for e, err := range reader.Entries(ctx, state.Commit) {
		if err == nil {
			err = tracer.Add(e.Commit, e.Events)
		}
		if err != nil {
			return fmt.Errorf("read the ledger: %w", err)
		}
		found = true
	}
	if !found {
		return ErrNoEntries
	}
	names := map[taskqueue.Ordinal]string{}
	for _, t := range queue.Overview().Trainers {
		names[t.Ordinal] = t.ID
	}
	r.Kept = reader.Outline().Commit + 1
	r.fill(tracer, reader.Outline(), names)
	return nil
}

// FindRecord finds the task of a record of a file. path is the path of the report, or relative to the working directory.
func FindRecord(queue *taskqueue.Queue, path string, n int64) (Trace, error) {
	names := []string{path}
	if abs, err := filepath.Abs(path); err == nil && abs != path {
		names = append(names, abs)
	}
	for set := 0; queue.Table(set) != nil; set++ {
		table := queue.Table(set)
		for _, f := range table.Files() {
			for _, name := range names {
				if f.Path != name {
					continue
				}
				p, err := table.FindRecord(name, n)
				if err != nil {
					return Trace{}, err
				}
				return Trace{Path: name, Record: n, Dataset: set, Task: p.Task, Chunk: p.Chunk.Idx, Offset: p.Chunk.Index.Offset, Passes: []TracePass{}}, nil
			}
		}
	}
	return Trace{}, fmt.Errorf("%q: expected a file of the dataset: master queues --literal lists the files", path)
}

// fill adds the dispatches that the tracer found. names has the trainers with a session.
func (r *Trace) fill(tracer *taskqueue.Tracer, outline taskqueue.Outline, names map[taskqueue.Ordinal]string) {
	name := func(o taskqueue.Ordinal) string {
		if id, ok := tracer.Name(o); ok {
			return id
		}
		if id := names[o]; id != "" || o == 0 {
			return id
		}
		return fmt.Sprintf("#%d", o)
	}
	if r.Dataset < len(outline.Sets) { // passes that ended before the kept ledger
		s := outline.Sets[r.Dataset]
		for p := taskqueue.Pass(1); int(s.Pass-p) >= s.Open && p <= s.Pass; p++ {
			r.Passes = append(r.Passes, TracePass{Pass: p, Outcome: "not_kept", Deliveries: []Delivery{}})
		}
	}
	for _, p := range tracer.Passes() {
		out := TracePass{Pass: p.Pass, Outcome: "retry", Deliveries: []Delivery{}}
		for _, d := range p.Deliveries {
			out.Deliveries = append(out.Deliveries, Delivery{
				Attempt: d.Attempt, Trainer: name(d.Trainer), Outcome: deliveryOutcomes[d.Outcome],
				Dispatched: wallTime(d.Dispatched), DispatchedCommit: d.Dispatched.Commit, Settled: wallTime(d.Settled), SettledCommit: d.Settled.Commit,
			})
			if d.Outcome == 0 {
				out.Outcome = "pending"
			}
		}
		if d := p.Counted(); d != nil {
			out.Outcome, out.Trainer = "counted", name(d.Trainer)
		} else if p.SetAside.Commit > 0 {
			out.Outcome = "set_aside"
		} else if p.Abandoned {
			out.Outcome = "abandoned"
		}
		r.Passes = append(r.Passes, out)
	}
}

func wallTime(m taskqueue.Moment) string {
	if m.At == 0 {
		return ""
	}
	return time.UnixMilli(m.At).UTC().Format("2006-01-02T15:04:05.000Z")
}
