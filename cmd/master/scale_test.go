package main

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"trainmaster/cmd/internal/cli"
	"trainmaster/master"
	pb "trainmaster/proto/trainmaster/v1"
)

func TestScaleWithoutServers(t *testing.T) {
	l := lead(t, master.Config{})
	runArgs(t, "scale", "ps=2", "--addr", l.addr).wants(t, cli.ExitFailed, "this job has no parameter servers: its master was started without --ps")
}

// answering is a leader that gives each Scale request the same answer.
type answering struct {
	pb.UnimplementedAdminServer
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
			pb.RegisterAdminServer(server, answering{reply: &pb.ScaleReply{ParameterServers: tt.was, Goal: 3, Waiting: "server 2 is missing"}})
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
			if got := <-code; got != cli.ExitFailed || stderr.String() != want {
				t.Errorf("exit code %d and %q, expected %d and %q", got, stderr.String(), cli.ExitFailed, want)
			}
		})
	}
}
