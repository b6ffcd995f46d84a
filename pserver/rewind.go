package pserver

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/dataport"
	"trainmaster/pserver/placement"
	core "trainmaster/pserver/shard"
)

// Rewind implements the service.
func (c *control) Rewind(ctx context.Context, request *pb.RewindRequest) (*pb.RewindReply, error) {
	if c.checkpoints == nil && len(request.GetSet()) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "shard %d keeps no checkpoints: start it with --checkpoint-dir", c.shard.Index())
	}
	if request.GetJobEpoch() == 0 || request.GetJobEpoch() > math.MaxUint16 {
		return nil, status.Errorf(codes.InvalidArgument, "job epoch %d: expected 1 to %d", request.GetJobEpoch(), math.MaxUint16)
	}
	var layout *placement.Layout
	if text := request.GetPlacement(); len(text) > 0 {
		var err error
		if layout, err = placement.ParseLayout(text); err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
	}
	ctx = context.WithoutCancel(ctx) // who asks again waits for this one
	if err := c.rewinds.rewind(ctx, request.GetTerm(), request.GetJobEpoch(), request.GetSet(), layout, c.data); err != nil {
		return nil, statusOf(err)
	}
	return &pb.RewindReply{}, nil
}

// rewind brings the shard to a set, or without one to no parameters, in a new job epoch; layout
// is where blocks were moved to, nil if none ever was. The previous parameters are dropped. No trainer is
// connected meanwhile; a trainer that reconnects receives the epoch.
func (c *checkpoints) rewind(ctx context.Context, term uint64, epoch uint32, text []byte, layout *placement.Layout, data *dataport.Listener) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.shard
	if term < c.term {
		return fmt.Errorf("%w: term %d, shard %d knows of term %d", errOldCut, term, s.Index(), c.term)
	}
	c.term = term
	if layout != nil && s.Index() >= max(layout.Shards, layout.Goal) {
		s.End(nil)
		return nil
	}
	switch at := s.RewoundTo(); {
	case epoch == at:
		return nil
	case epoch < at || epoch < s.JobEpoch():
		return fmt.Errorf("%w: job epoch %d, shard %d is at %d", errOldCut, epoch, s.Index(), s.JobEpoch())
	}
	c.dropLocked("rollback to a checkpoint set")
	resume := data.Pause()
	defer resume()
	name, err := c.becomeSet(ctx, text, layout, epoch)
	if err != nil {
		err = unusable(name, err, useAnother(c.store))
		if errors.Is(err, errUnusable) {
			c.refuse(err) //guard:refused-rollback-shown
		}
		return fmt.Errorf("go back: %w", err)
	}
	s.SetUnrestored("")
	s.Reserve()
	s.Log.WithFields(logrus.Fields{"set": name, "job_epoch": epoch, "version": s.Version()}).Info("gone back")
	return nil
}

// becomeSet loads a set, or removes all parameters, while no trainer is connected.
func (c *checkpoints) becomeSet(ctx context.Context, text []byte, layout *placement.Layout, epoch uint32) (name string, err error) {
	if len(text) == 0 {
		return "the beginning", c.shard.Rollback(epoch, nil)
	}
	name = "the latest set"
	err = c.shard.Rollback(epoch, func() error {
		set, err := checkpoint.ParseSet(text)
		if err != nil {
			return err
		}
		name = set.String()
		parts, err := c.store.Open(ctx, set)
		if err == nil {
			//guard:rollback-keeps-placement
			err = fillFrom(c.shard, parts, c.job, layout)
		}
		return err
	})
	return name, err
}

// checkEpoch compares the job epoch of a trainer with the shard's.
func checkEpoch(s *core.Shard, epoch uint32) error {
	at := s.JobEpoch()
	switch {
	case epoch == 0 || epoch == at:
		return nil
	case epoch > at:
		return status.Errorf(codes.Aborted, "trainer has job epoch %d, shard %d is still at %d", epoch, s.Index(), at)
	}
	return status.Errorf(codes.OutOfRange, "trainer has job epoch %d, shard %d is at %d: the job was rolled back", epoch, s.Index(), at)
}
