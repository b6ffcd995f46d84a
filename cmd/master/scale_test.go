package main

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"trainmaster/etcdstore"
	"trainmaster/master"
	"trainmaster/master/shards"
	pb "trainmaster/proto/trainmaster/v1"
)

// The command that ends the wait of a change has the flags of this job.
func TestScaleCompletesTheHint(t *testing.T) {
	waits := &pb.ScaleReply{Waiting: "parameter server with index 2 (of 0 to 2) is missing: " + shards.StartAnother}
	for endpoints, want := range map[string]string{
		"10.0.0.1:2379": "waiting: parameter server with index 2 (of 0 to 2) is missing: start one with: master pserver --endpoints 10.0.0.1:2379 --job digits, and the --checkpoint-dir of the others",
		"":              "waiting: parameter server with index 2 (of 0 to 2) is missing: start one with: master pserver --endpoints ...",
	} {
		etcd := &etcdstore.Config{Job: "digits"}
		if endpoints != "" {
			etcd.Endpoints = []string{endpoints}
		}
		l := &leader{place: place{etcd: etcd}}
		if got := l.progressOf(waits); got != want {
			t.Errorf("endpoints %q:\n%s\nexpected\n%s", endpoints, got, want)
		}
	}
}

func TestScaleWithoutServers(t *testing.T) {
	l := lead(t, master.Config{})
	runArgs(t, "scale", "ps=2", "--addr", l.addr).wants(t, exitFailed, "this job has no parameter servers: its master was started without --ps")
}

// answering is a leader that gives each Scale request the same answer.
type answering struct {
	pb.UnimplementedOperatorServer
	reply *pb.ScaleReply
}

func (a answering) Scale(context.Context, *pb.ScaleRequest) (*pb.ScaleReply, error) {
	return a.reply, nil
}

// If scale is interrupted, its error says that the migration continues, and has the command that undoes the request.
func TestScaleStopped(t *testing.T) {
	for name, tt := range map[string]struct {
		was  uint32
		back string
	}{
		"of two servers":        {2, "master scale ps=2 --addr ADDR --job digits\n"},
		"of a repeated request": {3, "master scale ps=N, with N the former number\n"},
	} {
		t.Run(name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			server := grpc.NewServer()
			pb.RegisterOperatorServer(server, answering{reply: &pb.ScaleReply{ParameterServers: tt.was, Goal: 3, Waiting: "server 2 is missing"}})
			ended := make(chan error, 1)
			go func() { ended <- server.Serve(listener) }()
			defer func() { server.Stop(); <-ended }()

			addr := listener.Addr().String()
			ctx, cancel := context.WithCancel(t.Context())
			reader, writer := io.Pipe()
			var stderr strings.Builder
			code := make(chan int, 1)
			go func() {
				code <- run(ctx, []string{"scale", "ps=3", "--addr", addr, "--job", "digits"}, writer, &stderr)
				writer.Close()
			}()
			if _, err := reader.Read(make([]byte, 100)); err != nil {
				t.Fatal(err)
			}
			cancel()
			if _, err := io.Copy(io.Discard, reader); err != nil {
				t.Fatal(err)
			}
			want := "master scale: stopped watching: the job continues to move to 3 parameter servers; to undo it: " + strings.ReplaceAll(tt.back, "ADDR", addr)
			if got := <-code; got != exitFailed || stderr.String() != want {
				t.Errorf("exit code %d and %q, expected %d and %q", got, stderr.String(), exitFailed, want)
			}
		})
	}
}

func TestScaleProgress(t *testing.T) {
	l := &leader{place: place{etcd: &etcdstore.Config{}}}
	for want, reply := range map[string]*pb.ScaleReply{
		"moving from 3 to 1 parameter server: 12 of 40 blocks and 682 of 2048 slots to move": {ParameterServers: 3, Goal: 1, BlocksLeft: 12, Blocks: 40, SlotsLeft: 682, Slots: 2048},
		"moving to 3 parameter servers: 0 of 40 blocks to move":                              {ParameterServers: 3, Goal: 3, Blocks: 40},
		"moving to 3 parameter servers":                                                      {ParameterServers: 2, Goal: 3},
		"the model is distributed over 1 parameter server":                                   {ParameterServers: 1, Goal: 1, Done: true},
	} {
		if got := l.progressOf(reply); got != want {
			t.Errorf("%q, expected %q", got, want)
		}
	}
}
