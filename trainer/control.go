package trainer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"trainmaster/internal/grpcserver"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
	"trainmaster/taskqueue/onwire"
)

// control implements the gRPC service TrainerControl.
type control struct {
	pb.UnimplementedTrainerControlServer
	listener net.Listener
	client   *Client       // set before the first call
	copies   chan struct{} // holds a token during GetModel: the memory of one model is bounded, the memory of many is not
	stall    time.Duration // as copyStall
}

// copyStall is the time without a sent message after which a copy of the model ends: its client does not read, and other clients wait.
const copyStall = 10 * time.Second

// listenControl opens the port of TrainerControl, before the master knows it. It returns nil if there is none.
func listenControl(address string, stall time.Duration) (*control, error) {
	if address == "" {
		return nil, nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for control of the trainer: %w", err)
	}
	return &control{listener: listener, copies: make(chan struct{}, 1), stall: stall}, nil
}

// address returns the address for the master. It is the port alone if the port is open on all addresses of the machine.
func (c *control) address() string {
	if c == nil {
		return ""
	}
	at := c.listener.Addr().(*net.TCPAddr).AddrPort() //nolint:forcetypeassert // of a TCP listener
	if at.Addr().IsUnspecified() {
		return fmt.Sprintf(":%d", at.Port())
	}
	return at.String()
}

func (c *control) close() {
	if c != nil {
		c.listener.Close()
	}
}

// serve serves calls until ctx ends.
func (c *control) serve(ctx context.Context) {
	log := c.client.config.Log
	server := grpcserver.New(grpcserver.Config{Table: grpcserver.Common, Log: log})
	pb.RegisterTrainerControlServer(server, c)
	if err := server.Serve(ctx, c.listener, func() {}); err != nil {
		log.WithError(err).Error("control of the trainer ended") // heartbeats have the same commands
	}
}

// StopTask implements the service.
func (c *control) StopTask(_ context.Context, in *pb.StopTaskRequest) (*pb.StopTaskReply, error) {
	running := c.client.runningTask()
	for _, tok := range c.client.held.list() {
		//guard:control-stops-named-task
		if names(in, tok, running) {
			c.client.stopTask(tok)
		}
	}
	return &pb.StopTaskReply{}, nil
}

// names reports whether a request is about a dispatch. A request without a number and a token is about what runs.
func names(in *pb.StopTaskRequest, tok, running taskqueue.Token) bool {
	switch {
	case in.GetToken() != nil:
		return onwire.TokenOf(in.GetToken()) == tok
	case in.GetTaskId() != 0:
		return taskqueue.TaskID(in.GetTaskId()) == tok.ID()
	}
	return tok == running
}

// GetProgress implements the service.
func (c *control) GetProgress(context.Context, *pb.GetProgressRequest) (*pb.Progress, error) {
	running, iteration := c.client.iteration()
	if running.IsZero() {
		return &pb.Progress{Iteration: iteration}, nil
	}
	return &pb.Progress{Epoch: int32(running.Pass), Iteration: iteration, TaskId: int64(running.ID())}, nil
}

// modelPart is the size of the content in a message of a model, in bytes.
const modelPart = 1 << 20

// GetModel implements the service.
func (c *control) GetModel(_ *pb.GetModelRequest, stream grpc.ServerStreamingServer[pb.Model]) error {
	if c.client.config.Model == nil {
		return status.Error(codes.Unimplemented, "model: expected a trainer with Config.Model, found a trainer without it")
	}
	ctx := stream.Context()
	select {
	case c.copies <- struct{}{}:
		defer func() { <-c.copies }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	version, content, err := c.client.config.Model(ctx)
	if errors.Is(err, ErrNoModel) {
		return status.Error(codes.Unavailable, err.Error())
	}
	if err != nil {
		return err
	}
	digest := sha256.Sum256(content)
	c.client.config.Log.WithFields(logrus.Fields{"version": version, "sha256": hex.EncodeToString(digest[:])}).Info("sending the model to another trainer")
	for {
		n := min(len(content), modelPart)
		part := &pb.Model{TrainerId: int32(c.client.who.Ordinal), ModelId: version, Content: content[:n]}
		content = content[n:]
		//guard:model-digest-last
		if len(content) == 0 {
			part.Digest = digest[:]
		}
		if err := c.send(stream, part); err != nil || len(content) == 0 {
			return err
		}
	}
}

// send sends a part of a model. A client that does not read holds it for a limited time. The end of the call then ends stream.Send.
func (c *control) send(stream grpc.ServerStreamingServer[pb.Model], part *pb.Model) error {
	sent := make(chan error, 1)
	go func() { sent <- stream.Send(part) }()
	timer := time.NewTimer(c.stall)
	defer timer.Stop()
	select {
	case err := <-sent:
		return err
	//guard:model-copy-stalls
	case <-timer.C:
		return status.Errorf(codes.DeadlineExceeded, "copy of the model: expected a client that reads, found no part read for %v", c.stall)
	}
}
