package main

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"trainmaster/cmd/internal/cli"
	"trainmaster/ledger/verify"
	"trainmaster/master"
	"trainmaster/taskqueue"
)

func TestTasksOfRecord(t *testing.T) {
	l := lead(t, master.Config{Shuffle: true, Queue: taskqueue.Options{Passes: 2, MaxFailures: 1}})
	began := time.Now().Add(-time.Second)
	l.train(30)
	args := func(of string, more ...string) []string {
		return append(append([]string{"tasks", "--of-record", of}, l.etcd...), more...)
	}
	aside := 0
	for task := range 30 { // 10 records each
		r := runArgs(t, args("/data/a:"+strconv.Itoa(task*10+3), "-o", "json")...)
		r.wants(t, cli.ExitOK)
		got := decode[verify.Trace](t, r.stdout)
		if got.Task != task || got.Chunk != task || got.Record != int64(task*10+3) || got.Path != "/data/a" || len(got.Passes) == 0 || got.Kept != 1 {
			t.Fatalf("task %d: %+v", task, got)
		}
		for i, p := range got.Passes {
			if p.Pass != taskqueue.Pass(i+1) {
				t.Errorf("task %d: %+v", task, p)
			}
			last := p.Deliveries[len(p.Deliveries)-1]
			if p.Outcome == "set_aside" {
				aside++
				if len(p.Deliveries) != 2 || last.Outcome != "failed" || p.Trainer != "" {
					t.Errorf("task %d: %+v", task, p)
				}
				continue
			}
			dispatched, err1 := time.Parse(time.RFC3339, last.Dispatched)
			counted, err2 := time.Parse(time.RFC3339, last.Settled)
			if p.Outcome != "counted" || p.Trainer != "a" || len(p.Deliveries) != 1 || last.Outcome != "counted" || last.Trainer != "a" ||
				last.DispatchedCommit >= last.SettledCommit || err1 != nil || err2 != nil || dispatched.Before(began) || counted.Before(dispatched) || counted.After(time.Now()) {
				t.Errorf("task %d: %+v", task, p)
			}
		}
		if n := len(got.Passes); n != 2 && got.Passes[0].Outcome != "set_aside" {
			t.Errorf("task %d is in %d passes", task, n)
		}
	}
	if aside != 1 {
		t.Errorf("%d tasks set aside", aside)
	}
	table := runArgs(t, args("/data/a:0")...)
	table.wants(t, cli.ExitOK)
	for _, words := range []string{"Record 0 of /data/a is in task 0 of dataset 0, in chunk 0 at offset 0.", "OUTCOME", "counted"} {
		if !strings.Contains(table.stdout, words) {
			t.Errorf("the table lacks %q:\n%s", words, table.stdout)
		}
	}
	for of, words := range map[string]string{
		"/data/a": "expected FILE:N", ":3": "expected FILE:N", "/data/a:-1": "expected FILE:N", "/data/a:x": "expected FILE:N",
		"/data/b:0": "expected a file of the dataset", "/data/a:300": "expected a record from 0 to 299, found 300",
	} {
		runArgs(t, args(of)...).wants(t, cli.ExitUsage, words)
	}
}
