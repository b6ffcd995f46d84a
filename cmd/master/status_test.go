package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"trainmaster/cmd/internal/cli"
	"trainmaster/cmd/internal/view"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/taskqueue"
)

func TestStatus(t *testing.T) {
	l := lead(t, master.Config{Queue: taskqueue.Options{Passes: 3}})
	empty := runArgs(t, "status", "--addr", l.addr)
	empty.wants(t, cli.ExitOK)
	if !strings.Contains(empty.stdout, "No dataset yet") || !strings.Contains(empty.stdout, "trainers  none") {
		t.Errorf("before a report: %s", empty.stdout)
	}
	l.report(1500)
	s := l.join("a")
	s.req.Progress = taskqueue.Progress{Records: 10, Loss: 0.25}
	task := s.take(finish(s.take()))
	s.take()

	for name, flags := range map[string][]string{"by address": {"--addr", l.addr}, "by etcd": l.etcd, "by both": append([]string{"--addr", l.addr}, l.etcd...)} {
		t.Run(name, func(t *testing.T) {
			r := runArgs(t, append([]string{"status", "-o", "json"}, flags...)...)
			r.wants(t, cli.ExitOK)
			v := decode[view.Status](t, r.stdout)
			if v.Job != l.job || v.Status != "running" || v.Leader.Address != l.addr || v.Leader.Term == 0 || v.Epoch != 1 || v.Commit == 0 || v.Totals.Commits == 0 {
				t.Errorf("head: %+v", v)
			}
			d := v.Datasets[0]
			if d.Kind != "training" || len(d.Digest) != 64 || d.Pass != 1 || d.Passes != 3 || d.Tasks != 1500 || d.Done != 1 || d.Pending != 2 || d.Todo != 1497 ||
				d.Retry != 0 || d.SetAside != 0 || d.Cursor != 3 || d.Chunks != 1500 || d.Records != 15000 || d.ChunksPerTask != 1 || d.AverageTask <= 0 || d.Timeout != 30 {
				t.Errorf("dataset: %+v", d)
			}
			if x := v.Totals; x.Trainers != 1 || x.RecordsTrained != 10 || x.MeanLoss == nil || *x.MeanLoss != 0.25 || x.Uptime <= 0 {
				t.Errorf("totals: %+v", x)
			}
		})
	}

	table := runArgs(t, "status", "--addr", l.addr)
	table.wants(t, cli.ExitOK)
	for _, want := range []string{
		"job       " + l.job + ", running\n", "leader    " + l.addr + ", term ", "trainers  1, 0 records/s, mean loss 0.25\n",
		"progress  ░░░░░░░░░░░░░░░░░░░░   0%", "DATASET  PASS  DONE  PENDING  RETRY  TODO   SET ASIDE  TASKS\n0        1/3   1     2 ", "1,497",
		"DATASET  KIND      PASS DONE  CHUNKS  RECORDS  TASK TIME  TIMEOUT\n0        training  0%         1,500   15,000 ",
	} {
		if !strings.Contains(table.stdout, want) {
			t.Errorf("the table lacks %q", want)
		}
	}
	if t.Failed() {
		t.Logf("table:\n%s", table.stdout)
	}
	if _, err := s.send(false, finish(task)); err != nil {
		t.Fatal(err)
	}
	yaml := runArgs(t, "status", "-o", "yaml", "--addr", l.addr)
	yaml.wants(t, cli.ExitOK)
	if !strings.Contains(yaml.stdout, "done: 2\n") {
		t.Errorf("yaml after another finish:\n%s", yaml.stdout)
	}
}

func TestWatch(t *testing.T) {
	l := lead(t, master.Config{Queue: taskqueue.Options{Passes: 1}})
	l.report(2)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	reader, writer := io.Pipe()
	code := make(chan int, 1)
	go func() {
		args := append([]string{"status", "--watch", "--interval", "20ms", "-o", "json"}, l.etcd...)
		code <- run(ctx, args, writer, io.Discard)
		writer.Close()
	}()
	looks := json.NewDecoder(reader)
	next := func() view.Status {
		t.Helper()
		var s view.Status
		if err := looks.Decode(&s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	if s := next(); s.Datasets[0].Done != 0 {
		t.Errorf("the first look: %+v", s)
	}
	s := l.join("a")
	task := s.take(finish(s.take()))
	for next().Datasets[0].Done != 1 {
	}
	if _, err := s.send(false, finish(task)); err != nil {
		t.Fatal(err)
	}
	last := next()
	for ; last.Status == "running"; last = next() {
	}
	if last.Status != "ended" || last.Datasets[0].Done != 2 {
		t.Errorf("the last look: %+v", last)
	}
	if got := <-code; got != cli.ExitOK {
		t.Errorf("exit code %d", got)
	}
}

func TestWatchEndsWhenInterrupted(t *testing.T) {
	l := lead(t, master.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	reader, writer := io.Pipe()
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"queues", "--watch", "--interval", "20ms", "--addr", l.addr}, writer, io.Discard)
		writer.Close()
	}()
	if _, err := reader.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := io.Copy(io.Discard, reader); err != nil {
		t.Fatal(err)
	}
	if got := <-code; got != cli.ExitOK {
		t.Errorf("exit code %d", got)
	}
	runArgs(t, "status", "--watch", "--interval", "1ns", "--addr", l.addr).wants(t, cli.ExitUsage, "--interval", "at least 10ms")
}

// A port without a listener.
func closedPort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func TestStatusWithoutMasterFails(t *testing.T) {
	l := lead(t, master.Config{})
	closed := closedPort(t)
	tests := map[string]struct {
		flags []string
		code  int
		words []string
	}{
		"no master at the address":  {[]string{"--addr", closed}, cli.ExitFailed, []string{"no master answers at " + closed, "master --listen " + closed, "--endpoints"}},
		"another job":               {[]string{"--addr", l.addr, "--job", "mnist"}, cli.ExitUsage, []string{"--job", "mnist", l.job}},
		"no such job in etcd":       {[]string{"--endpoints", etcdtest.Endpoint(t), "--job", "mnist"}, cli.ExitUsage, []string{`no job "mnist"`, "name one of these with --job: "}},
		"etcd is away":              {[]string{"--endpoints", closed, "--dial-timeout", "300ms"}, cli.ExitStore, []string{"etcd is unreachable", closed}},
		"a name that cannot be one": {[]string{"--endpoints", closed, "--job", "a/b"}, cli.ExitUsage, []string{"--job", "a/b"}},
		"an address that is none":   {[]string{"--addr", "nowhere"}, cli.ExitUsage, []string{`bad value "nowhere" for --addr`, "expected host:port"}},
	}
	for name, tt := range tests {
		for _, command := range []string{"status", "queues"} {
			t.Run(name+", "+command, func(t *testing.T) {
				runArgs(t, append([]string{command}, tt.flags...)...).wants(t, tt.code, tt.words...)
			})
		}
	}
	l.stop()
	r := runArgs(t, append([]string{"status"}, l.etcd...)...)
	r.wants(t, cli.ExitFailed, "no master leads", "master --endpoints", "--job "+l.job, "queues --literal")
}

func TestStatusOfStandbyFails(t *testing.T) {
	l := lead(t, master.Config{})
	second := standBy(t, l)
	runArgs(t, "status", "--addr", second).wants(t, cli.ExitFailed, second+": not the leader: standby: waiting for ")
}

func TestEmptyEtcd(t *testing.T) {
	endpoint := etcdtest.StartProcess(t, 0).Endpoint()
	for _, args := range [][]string{{"status"}, {"queues"}, {"queues", "--literal"}, {"verify"}} {
		runArgs(t, append(args, "--endpoints", endpoint)...).wants(t, cli.ExitUsage, "no job has run in the etcd at "+endpoint, "master --endpoints "+endpoint)
	}
}
