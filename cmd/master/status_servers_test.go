package main

import (
	"context"
	"encoding/json"
	"net"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"trainmaster/cmd/internal/cli"
	"trainmaster/cmd/internal/view"
	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/mastertest"
	"trainmaster/master/psclient"
	"trainmaster/master/pscontrol"
	pb "trainmaster/proto/trainmaster/v1"
)

// unwrapped is a text in one line, with single spaces.
func unwrapped(text string) string { return strings.Join(strings.Fields(text), " ") }

func TestParameterServersInJSON(t *testing.T) {
	tests := map[string]*pb.ParameterServers{
		`"parameter_servers":null`: nil,
		`"parameter_servers":{"wanted":2,"present":2,"missing":[],"moving_to":0,"placement_epoch":0,"waiting":"","unknown":"","overflow":"","unrestored":""}`:                   {Wanted: 2, Present: 2},
		`"parameter_servers":{"wanted":2,"present":1,"missing":[0,2],"moving_to":3,"placement_epoch":6,"waiting":"why","unknown":"etcd","overflow":"inf","unrestored":"set 7"}`: {Wanted: 2, Present: 1, Missing: []uint32{0, 2}, MovingTo: 3, PlacementEpoch: 6, Waiting: "why", Unknown: "etcd", Overflow: "inf", Unrestored: "set 7"},
	}
	for want, servers := range tests {
		text, err := json.Marshal(view.NewStatus(&pb.StatusReply{ParameterServers: servers}))
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("found %s, want %s, %v", text, want, err)
		}
	}
}

// servedJob is a job that needs n parameter servers, and a client of the servers.
func servedJob(t *testing.T, n int) (*etcdstore.Store, *psclient.Client) {
	t.Helper()
	store := etcdtest.Store(t)
	if _, err := store.SetDesiredIfAbsent(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	told := &psclient.Client{Addrs: func(ctx context.Context) ([]string, error) { return store.WaitPS(ctx, nil) }, Present: store.Servers, Registered: store.RegisteredServers}
	t.Cleanup(told.Close)
	return store, told
}

// claim claims an index for a server that does not run: only its key exists.
func claim(t *testing.T, store *etcdstore.Store) *etcdstore.Claim {
	t.Helper()
	c, err := store.ClaimPS(t.Context(), closedPort(t), time.Minute, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Release(context.Background()) })
	return c
}

func serversOf(t *testing.T, l *led) *view.Servers {
	t.Helper()
	r := runArgs(t, "status", "-o", "json", "--addr", l.addr)
	r.wants(t, cli.ExitOK)
	return decode[view.Status](t, r.stdout).Servers
}

func wantServers(t *testing.T, when string, found *view.Servers, want view.Servers) {
	t.Helper()
	if found == nil || !reflect.DeepEqual(*found, want) {
		t.Errorf("%s: found %+v, want %+v", when, found, want)
	}
}

func TestStatusOfParameterServers(t *testing.T) {
	store, told := servedJob(t, 3)
	var silent atomic.Bool
	registered := told.Registered
	told.Registered = func(ctx context.Context) ([]string, error) {
		if silent.Load() {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return registered(ctx)
	}
	l := leadWith(t, store, master.Config{}, nil, told)
	wantServers(t, "without servers", serversOf(t, l), view.Servers{Wanted: 3, Missing: []uint32{0, 1, 2}})
	claim(t, store)
	middle := claim(t, store)
	claim(t, store)
	wantServers(t, "all present", serversOf(t, l), view.Servers{Wanted: 3, Present: 3, Missing: []uint32{}})
	if err := middle.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantServers(t, "one is gone", serversOf(t, l), view.Servers{Wanted: 3, Present: 2, Missing: []uint32{1}})
	table := runArgs(t, "status", "--addr", l.addr)
	table.wants(t, cli.ExitOK)
	if want := "parameter servers 2 of 3, index 1 is missing: start one with: master pserver --endpoints ... "; !strings.Contains(unwrapped(table.stdout), want) {
		t.Errorf("the table lacks %q:\n%s", want, table.stdout)
	}
	silent.Store(true)
	patient, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if s, err := l.Servers(patient); err != nil || patient.Err() != nil || s.Unknown == "" {
		t.Errorf("etcd is silent: %+v, %v; found after the time limit of the request: %v", s, err, patient.Err())
	}
	wantServers(t, "etcd is silent", serversOf(t, l), view.Servers{Wanted: 3, Missing: []uint32{}, Unknown: context.DeadlineExceeded.Error()})
}

// The status names the cause of a waiting migration. If all blocks are at their servers, the status has no migration.
func TestStatusOfAMoveThatWaits(t *testing.T) {
	tests := map[string]struct {
		stored string
		want   view.Servers
	}{
		"to a server that was not started": {`{"format":2,"epoch":6,"shards":2,"goal":3,"owners":"0 1"}`, view.Servers{Wanted: 2, Present: 2, Missing: []uint32{2}, MovingTo: 3, PlacementEpoch: 6}},
		"to fewer":                         {`{"format":2,"epoch":6,"shards":2,"goal":1,"owners":"0 1"}`, view.Servers{Wanted: 2, Present: 2, Missing: []uint32{}, MovingTo: 1, PlacementEpoch: 6}},
		"all were moved":                   {`{"format":2,"epoch":6,"shards":2,"goal":2,"owners":"0 1"}`, view.Servers{Wanted: 2, Present: 2, Missing: []uint32{}, PlacementEpoch: 6}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			store, told := servedJob(t, 2)
			if _, err := store.Client().Put(t.Context(), store.Prefix()+pscontrol.PlacementKey, tt.stored); err != nil {
				t.Fatal(err)
			}
			claim(t, store)
			claim(t, store)
			l := leadWith(t, store, master.Config{}, nil, told)
			found := serversOf(t, l)
			mastertest.Eventually(t, "a missing server in the status", func() bool { found = serversOf(t, l); return found.Waiting != "" })
			if !strings.Contains(found.Waiting, "parameter server 0") {
				t.Errorf("it waits for %q", found.Waiting)
			}
			found.Waiting = ""
			wantServers(t, "it waits", found, tt.want)
		})
	}
}

func TestStatusWithoutParameterServers(t *testing.T) {
	store, told := servedJob(t, 0)
	l := leadWith(t, store, master.Config{}, nil, told)
	if found := serversOf(t, l); found != nil {
		t.Errorf("found %+v", found)
	}
	table := runArgs(t, "status", "--addr", l.addr)
	table.wants(t, cli.ExitOK)
	if strings.Contains(table.stdout, "parameter servers") {
		t.Errorf("the table has a line of them:\n%s", table.stdout)
	}
}

// faulty is a parameter server with a value that is not finite, and with a damaged set.
type faulty struct {
	pb.UnimplementedParameterServerServer
}

func (faulty) Describe(context.Context, *pb.DescribeRequest) (*pb.DescribeReply, error) {
	return &pb.DescribeReply{State: pb.DescribeReply_STATE_READY, Overflow: `tensor "w": element 3 is +Inf after update 7`, Unrestored: "set 7 is damaged"}, nil
}

// The status of a job without checkpoints names the value that overflowed, and the set that a server waits for.
func TestStatusNamesFaultsOfServers(t *testing.T) {
	store, told := servedJob(t, 1)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, done := grpc.NewServer(), make(chan struct{})
	pb.RegisterParameterServerServer(server, faulty{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() { server.Stop(); <-done })
	held, err := store.ClaimPS(t.Context(), listener.Addr().String(), time.Minute, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = held.Release(context.Background()) })
	l := leadWith(t, store, master.Config{}, nil, told)
	patient, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	found := serversOf(t, l)
	for ; found.Overflow == "" && patient.Err() == nil; found = serversOf(t, l) {
	}
	wantServers(t, "a value overflowed", found, view.Servers{Wanted: 1, Present: 1, Missing: []uint32{}, Overflow: `parameter server 0: tensor "w": element 3 is +Inf after update 7`, Unrestored: "parameter server 0: set 7 is damaged"})
}
