package main

import (
	"fmt"
	"strings"
	"testing"

	"trainmaster/cmd/internal/cli"
	"trainmaster/cmd/internal/view"
	"trainmaster/master"
	"trainmaster/taskqueue"
)

func (r result) says(t *testing.T, words ...string) {
	t.Helper()
	r.wants(t, cli.ExitOK)
	for _, w := range words {
		if !strings.Contains(r.stdout, w) {
			t.Errorf("standard output lacks %q:\n%s", w, r.stdout)
		}
	}
}

func TestTrainersAndDrain(t *testing.T) {
	l := lead(t, master.Config{})
	runArgs(t, "trainers", "--addr", l.addr).says(t, "No trainer")
	l.report(10)
	a := l.join("a")
	l.join("b")
	a.req.Progress = taskqueue.Progress{Records: 1234, Loss: 0.5}
	first := a.take()
	second := a.take()
	runArgs(t, "drain", "c", "--addr", l.addr).wants(t, cli.ExitFailed, `"c"`, "there are a, b")
	runArgs(t, "drain", "--addr", l.addr).wants(t, cli.ExitUsage, "drain TRAINER")
	runArgs(t, "drain", "b", "--addr", l.addr).says(t, "trainer b drains")
	r := runArgs(t, append([]string{"trainers", "-o", "json"}, l.etcd...)...)
	r.says(t)
	list := decode[[]view.Trainer](t, r.stdout)
	if len(list) != 2 || list[0].ID != "a" || !list[0].Joined || list[0].Draining || len(list[0].Tasks) != 2 || list[0].RecordsTrained != 1234 || list[0].Loss == nil || *list[0].Loss != 0.5 ||
		list[1].ID != "b" || !list[1].Draining || list[1].Loss != nil {
		t.Errorf("%+v", list)
	}
	runArgs(t, "trainers", "--addr", l.addr).says(t, "TRAINER  ORDINAL  STATE", "joined", "draining", "1,234", fmt.Sprintf("%d,%d", first.Index, second.Index))
}

func TestPauseAndResume(t *testing.T) {
	l := lead(t, master.Config{})
	l.report(10)
	runArgs(t, "pause", "--reason", "a new disk", "--addr", l.addr).says(t, "the job is paused")
	runArgs(t, "status", "--addr", l.addr).says(t, ", paused by an operator: a new disk\n")
	runArgs(t, "queues", "--addr", l.addr).says(t, ", paused by an operator: a new disk,")
	runArgs(t, "pause", "--addr", l.addr).says(t, "the job is paused")
	runArgs(t, "status", "--addr", l.addr).says(t, ", paused by an operator\n")
	runArgs(t, "resume", "--addr", l.addr).says(t, "the job is running")
	runArgs(t, "status", "--addr", l.addr).says(t, ", running\n")
}

func TestTasksRetryAndDrop(t *testing.T) {
	l := lead(t, master.Config{Queue: taskqueue.Options{MaxFailures: 1}})
	l.report(50)
	runArgs(t, "tasks", "--addr", l.addr).says(t, "No task is pending, to be retried or set aside.")
	runArgs(t, "tasks", "--state", "set_aside", "--addr", l.addr).says(t, "No task is set aside.")
	a := l.join("a")
	task := a.take()
	for range 6 { // two failures are one too many
		task = a.take(fail(task, "record 3\nis torn"))
	}
	read := func(flags ...string) []view.Task {
		t.Helper()
		r := runArgs(t, append([]string{"tasks", "-o", "json", "--addr", l.addr}, flags...)...)
		r.says(t)
		return decode[[]view.Task](t, r.stdout)
	}
	aside := read("--state", "set_aside")
	if len(aside) != 3 || aside[0].State != "set_aside" || aside[0].Failures != 2 || aside[0].Holder != "a" || aside[0].Error != "record 3\nis torn" {
		t.Fatalf("%+v", aside)
	}
	if pending := read("--state", "pending"); len(pending) != 1 || pending[0].Task != uint64(task.Index) || pending[0].Holders[0].Trainer != "a" {
		t.Errorf("%+v", pending)
	}
	one := fmt.Sprint(aside[0].Task)
	runArgs(t, "tasks", "drop", one, "--addr", l.addr).says(t, "task "+one+" is dropped")
	runArgs(t, "tasks", "--addr", l.addr).says(t, "dropped", "set aside", "record 3 is torn")
	for _, flags := range [][]string{{"--addr", l.addr}, append([]string{"--literal"}, l.etcd...)} {
		runArgs(t, append([]string{"queues"}, flags...)...).says(t, "3 (1 dropped)", "\n"+one+", dropped  1 ")
		r := runArgs(t, append([]string{"queues", "-o", "json"}, flags...)...)
		r.says(t)
		q := decode[view.Queues](t, r.stdout).Datasets[0]
		if len(q.SetAside) != 3 || !q.SetAside[0].Dropped || q.SetAside[1].Dropped || flags[0] == "--addr" && (q.Counts.SetAside != 3 || q.Counts.Dropped != 1) {
			t.Errorf("%v: expected that the first set-aside task is dropped, found %+v, %+v", flags, q.Counts, q.SetAside)
		}
	}
	runArgs(t, "tasks", "retry", one, "--addr", l.addr).wants(t, cli.ExitFailed, "dropped")
	runArgs(t, "tasks", "retry", "0/"+fmt.Sprint(aside[1].Task), "--addr", l.addr).says(t, "tasks put back: 1")
	runArgs(t, "tasks", "retry", "--all", "--addr", l.addr).says(t, "tasks put back: 1")
	runArgs(t, "tasks", "retry", "--addr", l.addr).wants(t, cli.ExitUsage, "--all")
	runArgs(t, "tasks", "retry", "x", "--addr", l.addr).wants(t, cli.ExitUsage, `"x"`, "its number")
	runArgs(t, "tasks", "retry", "9999", "--addr", l.addr).wants(t, cli.ExitFailed, "tasks are numbered from 0")
	runArgs(t, "tasks", "drop", fmt.Sprint(task.Index), "--addr", l.addr).wants(t, cli.ExitFailed, "not set aside", "set aside are "+one)
	runArgs(t, "verify", l.etcd[0], l.etcd[1], l.etcd[2], l.etcd[3]).says(t, "1 (1 dropped)")
}
