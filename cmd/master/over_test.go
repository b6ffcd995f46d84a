package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"trainmaster/cmd/internal/cli"
	"trainmaster/cmd/internal/view"
	"trainmaster/master"
	"trainmaster/taskqueue"
)

// doAll leads a job of n tasks to its end, and until its master has left.
func doAll(t *testing.T, n int) *led {
	t.Helper()
	l := lead(t, master.Config{Linger: time.Millisecond, Queue: taskqueue.Options{Passes: 1}})
	l.report(n)
	s := l.join("a")
	for range n {
		if _, err := s.send(false, finish(s.take())); err != nil {
			t.Fatal(err)
		}
	}
	l.awaitEnd()
	return l
}

func TestStatusOfEndedJob(t *testing.T) {
	l := doAll(t, 3)
	r := runArgs(t, append([]string{"status", "-o", "json"}, l.etcd...)...)
	r.wants(t, cli.ExitOK)
	s := decode[view.Status](t, r.stdout)
	if s.Job != l.job || s.Status != "ended" || s.Leader.Address != "" || s.Commit == 0 || len(s.Datasets) != 1 {
		t.Fatalf("head: %+v", s)
	}
	if d := s.Datasets[0]; d.Kind != "training" || d.Pass != 1 || d.Passes != 1 || d.Tasks != 3 || d.Done != 3 || d.Records != 30 || len(d.Digest) != 64 {
		t.Errorf("dataset: %+v", d)
	}
	table := runArgs(t, append([]string{"status"}, l.etcd...)...)
	table.wants(t, cli.ExitOK)
	for _, want := range []string{l.job + ", ended\n", "leader    none: the job has ended\n", "progress  ████████████████████ 100%\n", "0        1/1   3 "} {
		if !strings.Contains(table.stdout, want) {
			t.Errorf("the table lacks %q:\n%s", want, table.stdout)
		}
	}
	watch := runArgs(t, append([]string{"status", "--watch"}, l.etcd...)...)
	watch.wants(t, cli.ExitOK)
	for _, command := range [][]string{{"queues"}, {"tasks"}, {"trainers"}, {"pause"}} {
		runArgs(t, append(command, l.etcd...)...).wants(t, cli.ExitFailed, "ended after 1 pass, and no master leads it", "master queues --literal --endpoints", "master verify --endpoints")
	}
}

// daemon runs a master of a job in etcd, until ctx ends or it leaves; each line that it logs comes in lines.
func daemon(ctx context.Context, flags []string) (lines *bufio.Scanner, code <-chan int) {
	reader, writer := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, append([]string{"--listen", "127.0.0.1:0", "--http", "", "--linger", "1ms", "--shuffle=false"}, flags...), io.Discard, writer)
		writer.Close()
	}()
	return bufio.NewScanner(reader), ended
}

func logHas(t *testing.T, lines *bufio.Scanner, want string) {
	t.Helper()
	var seen []string
	for lines.Scan() {
		seen = append(seen, lines.Text())
		if strings.Contains(lines.Text(), want) {
			return
		}
	}
	t.Fatalf("no line with %q in the log:\n%s", want, strings.Join(seen, "\n"))
}

// A master of a job that has already ended warns of it, and does not log "done".
func TestMasterOfEndedJobWarns(t *testing.T) {
	l := doAll(t, 1)
	lines, code := daemon(t.Context(), l.etcd)
	logHas(t, lines, `already ended after 1 pass; to start over, choose another --job, or another --data-dir`)
	var rest []string
	for lines.Scan() {
		rest = append(rest, lines.Text())
		if strings.Contains(lines.Text(), "done: the job") {
			t.Errorf("unexpected line: %s", lines.Text())
		}
	}
	if got := <-code; got != cli.ExitOK {
		t.Errorf("exit code: expected %d, found %d: %s", cli.ExitOK, got, strings.Join(rest, "\n"))
	}
}

// Masters of a job that ends with set-aside tasks log these tasks in their last lines, and exit with code 4: the standby of the
// last leader, and masters that are started later.
func TestMasterOfAJobWithSetAsideTasks(t *testing.T) {
	l := lead(t, master.Config{Linger: time.Millisecond, Queue: taskqueue.Options{Passes: 1, MaxFailures: 1}})
	standby, standbyCode := daemon(t.Context(), l.etcd)
	logHas(t, standby, "waiting for the lock")
	l.train(20)
	l.awaitEnd()
	// The standby comes first: it has the lock next, and its log blocks until it is read.
	for _, name := range []string{"standby", "started again", "started a third time"} {
		lines, code := standby, standbyCode
		if name != "standby" {
			lines, code = daemon(t.Context(), l.etcd)
		}
		logHas(t, lines, "task=0")
		logHas(t, lines, "expected none set aside, found 1: see them with: master queues --literal --endpoints")
		for lines.Scan() {
			t.Errorf("%s: unexpected further line: %s", name, lines.Text())
		}
		if got := <-code; got != cli.ExitSetAside {
			t.Errorf("%s: exit code %d, expected %d", name, got, cli.ExitSetAside)
		}
	}
}

// A trainer that starts after the end of the job, without masters, does not wait for a master.
func TestTrainerOfEndedJobExits(t *testing.T) {
	shard := filepath.Join(t.TempDir(), "shard")
	if err := os.WriteFile(shard, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	late := func(l *led) result {
		return runArgs(t, append([]string{"trainer", "--id", "late", "--model", "softmax", "--data", shard}, l.etcd...)...)
	}
	late(doAll(t, 1)).wants(t, cli.ExitOK, "job ended, no master runs")

	l := lead(t, master.Config{Linger: time.Millisecond, Queue: taskqueue.Options{Passes: 1, MaxFailures: 1}})
	l.report(1)
	s := l.join("a")
	for range 2 { // more often than it may
		if _, err := s.send(false, fail(s.take(), "bad")); err != nil {
			t.Fatal(err)
		}
	}
	l.awaitEnd()
	late(l).wants(t, cli.ExitFailed, "job failed", "failed in pass 1")
}

func TestMasterIsStopped(t *testing.T) {
	l := lead(t, master.Config{})
	l.stop()
	ctx, cancel := context.WithCancel(t.Context())
	lines, code := daemon(ctx, l.etcd)
	logHas(t, lines, "leading")
	cancel()
	logHas(t, lines, "stopped before the end of the job; start it again to continue")
	for lines.Scan() {
	}
	if got := <-code; got != cli.ExitOK {
		t.Errorf("exit code %d", got)
	}
}

// Etcd accepts connections and answers nothing while a daemon starts. A daemon that is stopped then has stopped in order.
func TestDaemonStoppedDuringTheStartExitsWithZero(t *testing.T) {
	for name, args := range map[string][]string{
		"master":  {"--listen", "127.0.0.1:0", "--http", ""},
		"pserver": {"pserver", "--listen", "127.0.0.1:0"},
	} {
		t.Run(name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				if conn, err := listener.Accept(); err == nil {
					defer conn.Close()
					cancel() // it waits for etcd
					<-t.Context().Done()
				}
			}()
			var errs bytes.Buffer
			if code := run(ctx, append(args, "--endpoints", listener.Addr().String()), io.Discard, &errs); code != cli.ExitOK {
				t.Errorf("exit code %d, expected 0: %s", code, errs.String())
			}
		})
	}
}

// What answers but is no master is said to be none, without the words of a library.
func TestStatusOfOtherProtocolFails(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	r := runArgs(t, "status", "--addr", strings.TrimPrefix(server.URL, "http://"))
	r.wants(t, cli.ExitFailed, "does not use gRPC")
	for _, word := range []string{"rpc error", "http2"} {
		if strings.Contains(r.stderr, word) {
			t.Errorf("%q in %s", word, r.stderr)
		}
	}
}
