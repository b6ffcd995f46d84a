package psclient

import (
	"context"
	"encoding/json"
	"fmt"

	"trainmaster/master/pscontrol"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/checkpoint"
	"trainmaster/taskqueue"
)

// States says how the servers are, by index; nil for a job without.
func (c *Client) States(ctx context.Context) ([]pscontrol.ServerState, error) {
	addrs, err := c.Present(ctx)
	if err != nil {
		return nil, fmt.Errorf("find the parameter servers: %w", err)
	}
	c.forget(addrs)
	servers, err := c.brief(ctx, addrs)
	states := make([]pscontrol.ServerState, len(addrs))
	for i, s := range servers {
		states[i] = pscontrol.ServerState{
			Present: s != nil, Ready: s.GetState() == pb.DescribeReply_STATE_READY, Epoch: s.GetRewound(), LastCut: s.GetLastCut(),
			KeepsCheckpoints: s.GetKeepsCheckpoints(), WantsSet: s.GetWantsSet(), Unrestored: s.GetUnrestored(), Overflow: s.GetOverflow(),
			Address: addrs[i], MemoryUsed: s.GetMemoryUsed(),
			StageNeed: s.GetStageNeed() + s.GetStageRows(), StageLimit: s.GetStageLimit(), LearningRate: s.GetLearningRate(), //guard:stage-room-of-rows
		}
	}
	return states, err
}

// Rollback implements [pscontrol.Servers].
func (c *Client) Rollback(ctx context.Context, term uint64, epoch uint32, set, placed []byte) error {
	// Addrs can still have the number of servers before this placement. Present reads the current number.
	addrs, err := c.whole(ctx)
	if err != nil {
		addrs, err = c.Addrs(ctx)
	}
	if err != nil {
		return fmt.Errorf("find the parameter servers: %w", err)
	}
	c.forget(addrs)
	return c.all(addrs, "roll back", calling(ctx, pb.ParameterServerClient.Rewind, &pb.RewindRequest{Term: term, JobEpoch: epoch, Set: set, Placement: placed}))
}

// Retire sends the retired incarnations to all registered servers.
func (c *Client) Retire(ctx context.Context, term uint64, job [16]byte, floor uint64, spared []uint64, version *uint64) error {
	addrs, err := c.Registered(ctx)
	if err != nil {
		return fmt.Errorf("find the parameter servers: %w", err)
	}
	request := &pb.RetireRequest{Term: term, Version: version, Retired: &pb.Retirement{Job: job[:], Floor: floor, Spared: spared}}
	return c.all(addrs, "retire trainers at", calling(ctx, pb.ParameterServerClient.Retire, request))
}

// SetLearningRate implements [pscontrol.Servers].
func (c *Client) SetLearningRate(ctx context.Context, term uint64, rate taskqueue.RateChange) error {
	addrs, err := c.Registered(ctx)
	if err != nil {
		return fmt.Errorf("find the parameter servers: %w", err)
	}
	request := &pb.SetLearningRateRequest{Term: term, Number: rate.Number, Scale: rate.Scale}
	return c.all(addrs, "set the learning rate of", calling(ctx, pb.ParameterServerClient.SetLearningRate, request))
}

// SetAt decodes the cut of a set.
func (c *Client) SetAt(set []byte) (pscontrol.SetAt, error) {
	s, err := checkpoint.ParseSet(set)
	if err != nil {
		return pscontrol.SetAt{}, err
	}
	at := pscontrol.SetAt{Number: s.Number, JobID: s.JobID, Version: s.Version}
	if s.Position != nil {
		at.Position = &pscontrol.Position{}
		err = json.Unmarshal(s.Position, at.Position)
	}
	return at, err
}

// Discard has all servers remove what was written for sets that are newer than the latest one.
func (c *Client) Discard(ctx context.Context, term uint64, latest []byte) error {
	var at pscontrol.SetAt
	if latest != nil {
		var err error
		if at, err = c.SetAt(latest); err != nil {
			return err
		}
	}
	addrs, err := c.whole(ctx)
	if err != nil {
		return err
	}
	return c.all(addrs, "discard what failed sets left on", calling(ctx, pb.ParameterServerClient.PruneSets, &pb.PruneSetsRequest{Cut: &pb.Cut{Number: at.Number, Term: term}, Failed: true}))
}
