package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"trainmaster/cmd/internal/cli"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
)

// Status names the full etcd and the commands that free it, while a master leads and when none can.
func TestStatusNamesAFullStore(t *testing.T) {
	etcd := etcdtest.StartProcess(t, 8<<20)
	l := leadJob(t, etcdtest.Open(t, etcd.Endpoint(), etcdtest.NewJob(t)), master.Config{})
	l.report(3)
	flags := []string{"--endpoints", etcd.Endpoint(), "--job", l.job}
	if r := runArgs(t, append([]string{"status"}, flags...)...); strings.Contains(r.stdout, "full") {
		t.Errorf("status with room:\n%s", r.stdout)
	}
	filler := strings.Repeat("x", 1<<20)
	for i := 0; ; i++ {
		if _, err := l.store.Client().Put(t.Context(), fmt.Sprint("/filler/", i), filler); err != nil {
			break
		}
	}
	if _, err := l.Join(t.Context(), "a", ""); !errors.Is(err, master.ErrNotStored) {
		t.Fatalf("a join with a full etcd: %v", err)
	}
	words := []string{"the store is full", etcd.Endpoint(), "etcdctl compact", "etcdctl defrag && etcdctl alarm disarm"}
	r := runArgs(t, "status", "--addr", l.addr)
	for _, word := range words {
		if !strings.Contains(strings.Join(strings.Fields(r.stdout), " "), word) { // it is wrapped
			t.Errorf("status of a leader whose commits are refused has no %q:\n%s", word, r.stdout)
		}
	}
	l.stop()
	runArgs(t, append([]string{"status"}, flags...)...).wants(t, cli.ExitFailed, append(words, "no master leads")...)
}
