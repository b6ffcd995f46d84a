package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"trainmaster/cmd/internal/admin"
	"trainmaster/cmd/internal/cli"
	"trainmaster/etcdstore"
	"trainmaster/taskqueue"
)

// recordTrace is the output of `master tasks --of-record`: the dispatches of one record in each pass.
type recordTrace struct {
	Path    string       `json:"path"`
	Record  int64        `json:"record"` // of the file, from 0
	Dataset int          `json:"dataset"`
	Task    int          `json:"task"`
	Chunk   int          `json:"chunk"`  // of the file, from 0
	Offset  int64        `json:"offset"` // of the chunk
	Kept    uint64       `json:"kept_from_commit"`
	Passes  []recordPass `json:"passes"`
}

type recordPass struct {
	Pass       taskqueue.Pass   `json:"pass"`
	Outcome    string           `json:"outcome"` // counted, set_aside, pending, retry, not_kept
	Trainer    string           `json:"trainer"` // whose training was counted
	Deliveries []recordDelivery `json:"deliveries"`
}

type recordDelivery struct {
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

// parseRecord reads FILE:N.
func parseRecord(text string) (path string, n int64, err error) {
	at := strings.LastIndexByte(text, ':')
	if at > 0 {
		n, err = strconv.ParseInt(text[at+1:], 10, 64)
	}
	if at <= 0 || err != nil || n < 0 {
		return "", 0, cli.UsageErrorf("--of-record %q: expected FILE:N, a file of the dataset and the number of a record in it, from 0", text)
	}
	return text[:at], n, nil
}

// traceRecord finds the task that a record is in, and follows it through the job's ledger.
func traceRecord(ctx context.Context, store *etcdstore.Store, from admin.Location, dir, what string) (recordTrace, error) {
	path, n, err := parseRecord(what)
	if err != nil {
		return recordTrace{}, err
	}
	queue, _, err := admin.ReadQueue(ctx, store, from)
	if err != nil {
		return recordTrace{}, err
	}
	trace, err := findRecord(queue, path, n)
	if err != nil {
		return trace, err
	}
	reader, state, err := admin.OpenLedger(ctx, store, from, dir)
	if err != nil {
		return trace, err
	}
	tracer := taskqueue.NewTracer(trace.Dataset, trace.Task, reader.Outline())
	read := false
	for e, err := range reader.Entries(ctx, state.Commit) {
		if err == nil {
			err = tracer.Add(e.Commit, e.Events)
		}
		if err != nil {
			return trace, fmt.Errorf("read the ledger: %w", err)
		}
		read = true
	}
	if !read {
		return trace, admin.NoLedger(store, from)
	}
	names := map[taskqueue.Ordinal]string{}
	for _, t := range queue.Overview().Trainers {
		names[t.Ordinal] = t.ID
	}
	trace.Kept = reader.Outline().Commit + 1
	trace.fill(tracer, reader.Outline(), names)
	return trace, nil
}

// findRecord finds a record of a file that is named as it was reported, or as it is from here.
func findRecord(queue *taskqueue.Queue, path string, n int64) (recordTrace, error) {
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
					return recordTrace{}, cli.UsageErrorf("--of-record: %w", err)
				}
				return recordTrace{Path: name, Record: n, Dataset: set, Task: p.Task, Chunk: p.Chunk.Idx, Offset: p.Chunk.Index.Offset, Passes: []recordPass{}}, nil
			}
		}
	}
	return recordTrace{}, cli.UsageErrorf("--of-record: %q is no file of the dataset; master queues --literal lists them", path)
}

// fill adds the dispatches that the tracer found. names has the trainers with a session.
func (r *recordTrace) fill(tracer *taskqueue.Tracer, outline taskqueue.Outline, names map[taskqueue.Ordinal]string) {
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
			r.Passes = append(r.Passes, recordPass{Pass: p, Outcome: "not_kept", Deliveries: []recordDelivery{}})
		}
	}
	for _, p := range tracer.Passes() {
		out := recordPass{Pass: p.Pass, Outcome: "retry", Deliveries: []recordDelivery{}}
		for _, d := range p.Deliveries {
			out.Deliveries = append(out.Deliveries, recordDelivery{
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

func (r recordTrace) table(w io.Writer) {
	fmt.Fprintf(w, "Record %d of %s is in task %d of dataset %d, in chunk %d at offset %d.\n\n", r.Record, r.Path, r.Task, r.Dataset, r.Chunk, r.Offset)
	fmt.Fprintln(w, "PASS\tATTEMPT\tTRAINER\tDISPATCHED\tOUTCOME\tWHEN\tCOMMITS")
	unknown := func(text string) string {
		if text == "" {
			return "-"
		}
		return text
	}
	for _, p := range r.Passes {
		for _, d := range p.Deliveries {
			fmt.Fprintf(w, "%d\t%d\t%s\t%s\t%s\t%s\t%d-%d\n", p.Pass, d.Attempt, unknown(d.Trainer), unknown(d.Dispatched),
				strings.ReplaceAll(d.Outcome, "_", " "), unknown(d.Settled), d.DispatchedCommit, d.SettledCommit)
		}
		switch p.Outcome {
		case "set_aside":
			fmt.Fprintf(w, "%d\t-\t-\t-\tset aside\t-\t-\n", p.Pass)
		case "not_kept":
			fmt.Fprintf(w, "%d\t-\t-\t-\tnot kept\t-\t-\n", p.Pass)
		}
	}
	if len(r.Passes) == 0 {
		fmt.Fprintln(w, "It was not dispatched yet.")
	}
	if r.Kept > 1 {
		fmt.Fprintf(w, "\nThe ledger is kept from commit %d on; earlier dispatches are unknown.\n", r.Kept)
	}
}
