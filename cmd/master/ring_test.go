package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"trainmaster/cmd/internal/cli"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/component"
	"trainmaster/master/podmanager"
	"trainmaster/master/pods"
	"trainmaster/master/rendezvous"
	"trainmaster/master/ring"
)

// withoutPods is a cluster in which no pod is created.
type withoutPods struct{ pods.Cluster }

func (withoutPods) Watch(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return ctx.Err()
}
func (withoutPods) Pods() ([]podmanager.Pod, bool)         { return nil, false }
func (withoutPods) Problem() string                        { return "" }
func (withoutPods) Requests() map[podmanager.Request]int64 { return nil }

// F355: the reason of a ring that waits is in `master status` and `master pods`, as text and as JSON.
func TestRingThatWaitsIsShown(t *testing.T) {
	store := etcdtest.Store(t)
	r := ring.New(ring.Config{Store: store, Rendezvous: rendezvous.Config{Min: 2, Max: 3}, LongWait: 50 * time.Millisecond})
	m := pods.New(pods.Config{Pods: podmanager.Config{Job: "j", OOMFactor: 1.5, Workers: podmanager.Group{Count: 3, Min: 2}}, Cluster: withoutPods{}, Store: store})
	l := leadJob(t, store, master.Config{Ring: r, Pods: m, Components: []component.Component{m, r}})
	const reason = "expected at least 2 members, found 0"
	for end := time.Now().Add(20 * time.Second); r.Stuck() != reason; time.Sleep(time.Millisecond) { // interval between checks
		if time.Now().After(end) {
			t.Fatalf("expected a ring that waits, found %q", r.Stuck())
		}
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"status"}, "waits: " + reason},
		{[]string{"status", "-o", "json"}, `"ring_waits": "` + reason},
		{[]string{"pods"}, "The ring waits: " + reason},
		{[]string{"pods", "-o", "json"}, `"ring_waits": "` + reason},
	} {
		r := runArgs(t, append(c.args, l.etcd...)...)
		if r.wants(t, cli.ExitOK); !strings.Contains(r.stdout, c.want) {
			t.Errorf("master %v: expected %q, found\n%s", c.args, c.want, r.stdout)
		}
	}
}

func TestBadRingFlagsAreNamed(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--ring 0", "--ring from the command line: expected N or MIN:MAX with numbers from 1 to 1000"},
		{"--ring 4:2", "expected MIN:MAX with MIN at most MAX, found MIN 4 and MAX 2"},
		{"--ring 2:x", "expected N or MIN:MAX"},
		{"--ring 1:1001", "expected N or MIN:MAX"},
		{"--ring 2 --ring-window 2h", "--ring-window from the command line: expected 0 to 1h"},
		{"--ring-window 1s", "expected --ring with the number of members"},
		{"--distribution-strategy allreduce", "expected --ring with the number of members, or --workers"},
		{"--ring 2 --task-timeout-min 5s", "--task-timeout-min from the command line: expected at least 20s with a ring"},
		{"worker --addr 127.0.0.1:1 python3", "expected the command after --"},
		{"worker -- /bin/true", "expected --endpoints of etcd, or --addr of the master"},
		{"worker --addr x -- /bin/true", "--addr from the command line: expected host:port"},
		{"worker --addr 127.0.0.1:1 --processes 0 -- /bin/true", "expected 1 to 1024"},
		{"worker --addr 127.0.0.1:99999 -- /bin/true", "--addr from the command line: expected host:port"},
		{"worker --addr 127.0.0.1:1 --host [::1] -- /bin/true", "--host from the command line: expected an address or a name without a port"},
		{"worker --addr 127.0.0.1:1 --host 10.0.0.1:80 -- /bin/true", "--host from the command line: expected an address or a name without a port"},
		{"worker --addr 127.0.0.1:1 --processes 3 --ports 4000,4001 -- /bin/true", "expected at least 3 ports for --processes 3"},
		{"worker --addr 127.0.0.1:1 --processes 17 --servers 10.0.0.1:7000 -- /bin/true", "expected at most 16 --processes"},
		{"worker --addr 127.0.0.1:1 --ports 0 -- /bin/true", "expected at most 16 ports from 1 to 65535"},
		{"worker --addr 127.0.0.1:1 --servers x -- /bin/true", "--servers from the command line: expected host:port of each"},
		{"worker --addr 127.0.0.1:1 -- /no/such/program", "expected a program in PATH, or a path to an executable file"},
	} {
		t.Run(c.args, func(t *testing.T) {
			root := rootCommand()
			args := strings.Split(c.args, " ")
			if args[0] != "worker" {
				args = append(args, "--data-dir", t.TempDir())
			}
			root.SetArgs(args)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // of a command that accepts the flags
			defer cancel()
			err := root.ExecuteContext(ctx)
			if err == nil || !strings.Contains(err.Error(), c.want) || cli.ExitCode(err) != cli.ExitUsage {
				t.Errorf("expected exit code 2 and %q, found %v", c.want, err)
			}
		})
	}
}
