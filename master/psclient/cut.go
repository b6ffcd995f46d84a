package psclient

import (
	"context"
	"fmt"
	"slices"
	"time"

	"trainmaster/master/pscontrol"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/checkpoint"
)

// abortTimeout bounds the calls that abort a cut on the servers.
const abortTimeout = 2 * time.Second

// Begin begins a cut on each server if all servers are registered, have parameters and can save them. number chooses
// the number of the cut from the greatest number that any server has seen.
func (c *Client) Begin(ctx context.Context, term uint64, epoch uint32, number func(last uint64) uint64) (pscontrol.Cut, error) {
	addrs, err := c.whole(ctx)
	if err != nil {
		return nil, err
	}
	servers, err := c.brief(ctx, addrs)
	if err != nil {
		return nil, err
	}
	var last uint64
	for _, s := range servers {
		if s.GetState() != pb.DescribeReply_STATE_READY {
			return nil, pscontrol.ErrNothingToCut
		}
		last = max(last, s.GetLastCut())
	}
	if !slices.ContainsFunc(servers, (*pb.DescribeReply).GetKeepsCheckpoints) {
		return nil, pscontrol.ErrNothingToCut
	}
	if err := checkKept(addrs, servers); err != nil {
		return nil, err
	}
	cut := &cut{client: c, addrs: addrs, name: &pb.Cut{Number: number(last), Term: term}, epoch: epoch}
	if err := cut.begin(ctx); err != nil {
		// ctx may have expired, and all calls would then fail. A server that misses the abort drops the cut when a
		// later cut begins.
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
		defer cancel()
		_ = cut.Abort(bounded)
		return nil, err
	}
	return cut, nil
}

// checkKept says which server has no place for checkpoints, when others have one.
func checkKept(addrs []string, servers []*pb.DescribeReply) error {
	without := slices.IndexFunc(servers, func(s *pb.DescribeReply) bool { return !s.GetKeepsCheckpoints() })
	if without >= 0 && slices.ContainsFunc(servers, (*pb.DescribeReply).GetKeepsCheckpoints) {
		return fmt.Errorf("the parameter server with index %d (%s) was started without --checkpoint-dir, and others keep checkpoints: start it again with the folder of the others", without, addrs[without])
	}
	return nil
}

// keepAlike refuses servers of which only some keep checkpoints: the job would have none any more.
func (c *Client) keepAlike(ctx context.Context, addrs []string) error {
	servers, err := c.brief(ctx, addrs)
	if err != nil {
		return err
	}
	return checkKept(addrs, servers)
}

// cut is a consistent point of all parameter servers.
type cut struct {
	client  *Client
	addrs   []string
	name    *pb.Cut
	epoch   uint32
	mode    string
	version uint64
}

func (c *cut) Number() uint64 { return c.name.GetNumber() }

func (c *cut) begin(ctx context.Context) error {
	replies := make([]*pb.BeginCutReply, len(c.addrs))
	if err := c.all("begin", func(i int, server pb.ParameterServerClient) (err error) {
		replies[i], err = server.BeginCut(ctx, &pb.BeginCutRequest{Cut: c.name, JobEpoch: c.epoch})
		return err
	}); err != nil {
		return err
	}
	c.mode, c.version = checkpoint.Async, replies[0].GetVersion()
	if replies[0].GetMode() == pb.UpdateMode_UPDATE_MODE_SYNC {
		c.mode = checkpoint.Sync
	}
	for i, r := range replies {
		if r.GetPlacementEpoch() != replies[0].GetPlacementEpoch() {
			return fmt.Errorf("cut %d: parameter server 0 has placement epoch %d, parameter server %d has %d: one of them has not received the latest move", c.Number(), replies[0].GetPlacementEpoch(), i, r.GetPlacementEpoch())
		}
		if r.GetMode() != replies[0].GetMode() || r.GetVersion() != c.version {
			return fmt.Errorf("cut %d: parameter server 0 is at version %d, parameter server %d at %d: one of them has not received the latest step", c.Number(), c.version, i, r.GetVersion())
		}
	}
	return nil
}

func (c *cut) all(what string, call func(i int, server pb.ParameterServerClient) error) error {
	return c.client.all(c.addrs, fmt.Sprintf("%s cut %d of", what, c.Number()), call)
}

// Write has all servers write their checkpoints, and one of them the manifest of the set.
func (c *cut) Write(ctx context.Context, about pscontrol.About) ([]byte, error) {
	set := &checkpoint.Set{
		Job: about.Job, JobID: about.JobID, Number: c.Number(), After: about.After, Mode: c.mode, Version: c.version, JobEpoch: c.epoch,
		Position: about.Position, State: checkpoint.StateOf(c.Number(), about.State), Shards: make([]checkpoint.Part, len(c.addrs)),
	}
	if err := c.all("write", func(i int, server pb.ParameterServerClient) error {
		reply, err := server.WriteCut(ctx, &pb.WriteCutRequest{Cut: c.name})
		set.Shards[i] = checkpoint.Part{Shard: i, Generation: checkpoint.Generation{Start: reply.GetStart(), Sequence: reply.GetSequence()}, SHA256: reply.GetSha256()}
		return err
	}); err != nil {
		return nil, err
	}
	text, err := set.Encode()
	if err != nil {
		return nil, fmt.Errorf("encode set %d: %w", c.Number(), err)
	}
	err = c.client.all(c.addrs[:1], fmt.Sprintf("write the set of cut %d on", c.Number()), func(_ int, server pb.ParameterServerClient) error {
		_, err := server.WriteSet(ctx, &pb.WriteSetRequest{Cut: c.name, Set: text, State: about.State})
		return err
	})
	return text, err
}

// Abort drops the cut where it was begun.
func (c *cut) Abort(ctx context.Context) error {
	return c.all("abort", func(_ int, server pb.ParameterServerClient) error {
		_, err := server.AbortCut(ctx, &pb.AbortCutRequest{Cut: c.name})
		return err
	})
}

// Prune has the servers remove what only older sets need: the sets first, so that none is
// there without its checkpoints.
func (c *cut) Prune(ctx context.Context, keep int) error {
	prune := func(_ int, server pb.ParameterServerClient) error {
		_, err := server.PruneSets(ctx, &pb.PruneSetsRequest{Cut: c.name, Keep: uint32(keep)})
		return err
	}
	what := fmt.Sprintf("prune before cut %d on", c.Number())
	if err := c.client.all(c.addrs[:1], what, prune); err != nil {
		return err
	}
	return c.client.all(c.addrs, what, prune)
}
