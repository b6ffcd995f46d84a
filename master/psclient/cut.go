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

// Begin begins a cut on each registered server if they have parameters and can save them. A server that is not registered must
// have a part in of.Latest.
func (c *Client) Begin(ctx context.Context, of pscontrol.CutRequest) (pscontrol.Cut, error) {
	addrs, parts, err := c.orParts(ctx, of.Latest)
	if err != nil {
		return nil, err
	}
	servers, err := c.brief(ctx, addrs)
	if err != nil {
		return nil, err
	}
	var last uint64
	for i, s := range servers {
		if addrs[i] == "" {
			continue
		}
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
	cut := &cut{client: c, addrs: addrs, parts: parts, name: &pb.Cut{Number: of.Number(last), Term: of.Term}, epoch: of.Epoch}
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

// orParts returns the addresses of the servers, "" for a server that is not registered, and the parts of the latest set for such
// servers. At least one server must be registered.
func (c *Client) orParts(ctx context.Context, latest []byte) (addrs []string, parts []checkpoint.Part, err error) {
	if latest == nil {
		addrs, err = c.whole(ctx)
		return addrs, nil, err
	}
	set, err := checkpoint.ParseSet(latest)
	if err != nil {
		return nil, nil, err
	}
	if addrs, err = c.Present(ctx); err != nil {
		return nil, nil, fmt.Errorf("find the parameter servers: %w", err)
	}
	if absent := slices.Index(addrs, ""); absent >= 0 && (len(set.Shards) != len(addrs) || firstOf(addrs) < 0) {
		return nil, nil, missing(absent, len(addrs))
	}
	if len(addrs) == 0 {
		return nil, nil, pscontrol.ErrNothingToCut
	}
	c.forget(addrs)
	return addrs, set.Shards, nil
}

// firstOf returns the index of the first registered server, -1 if there is none.
func firstOf(addrs []string) int {
	return slices.IndexFunc(addrs, func(addr string) bool { return addr != "" })
}

// checkKept says which server has no place for checkpoints, when others have one. servers has nil for a server that is not registered.
func checkKept(addrs []string, servers []*pb.DescribeReply) error {
	without := slices.IndexFunc(servers, func(s *pb.DescribeReply) bool { return s != nil && !s.GetKeepsCheckpoints() })
	if without >= 0 && slices.ContainsFunc(servers, (*pb.DescribeReply).GetKeepsCheckpoints) {
		return fmt.Errorf("the parameter server with index %d (%s) was started without --checkpoint-dir, and others keep checkpoints: start it again with the folder of the others", without, addrs[without])
	}
	return nil
}

// cut is a consistent point of all parameter servers.
type cut struct {
	client  *Client
	addrs   []string          // "" for a server that is not registered
	parts   []checkpoint.Part // of the latest set, which take the place of such servers
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
	index := firstOf(c.addrs)
	first := replies[index]
	c.mode, c.version = checkpoint.Async, first.GetVersion()
	if first.GetMode() == pb.UpdateMode_UPDATE_MODE_SYNC {
		c.mode = checkpoint.Sync
	}
	for i, r := range replies {
		switch {
		case r == nil:
			continue
		case r.GetPlacementEpoch() != first.GetPlacementEpoch():
			return fmt.Errorf("cut %d: parameter server %d has placement epoch %d, parameter server %d has %d: one of them has not received the latest move", c.Number(), index, first.GetPlacementEpoch(), i, r.GetPlacementEpoch())
		case r.GetMode() != first.GetMode() || r.GetVersion() != c.version:
			return fmt.Errorf("cut %d: parameter server %d is at version %d, parameter server %d at %d: one of them has not received the latest step", c.Number(), index, c.version, i, r.GetVersion())
		}
	}
	return nil
}

func (c *cut) all(what string, call func(i int, server pb.ParameterServerClient) error) error {
	return c.client.all(c.addrs, fmt.Sprintf("%s cut %d of", what, c.Number()), call)
}

// onOne calls the first registered server.
func (c *cut) onOne(what string, call func(i int, server pb.ParameterServerClient) error) error {
	return c.client.at(c.addrs, firstOf(c.addrs), what, call)
}

// Write has all servers write their checkpoints, and one of them the manifest of the set.
func (c *cut) Write(ctx context.Context, about pscontrol.About) ([]byte, error) {
	set := &checkpoint.Set{
		Job: about.Job, JobID: about.JobID, Number: c.Number(), After: about.After, Mode: c.mode, Version: c.version, JobEpoch: c.epoch,
		Position: about.Position, State: checkpoint.StateOf(c.Number(), about.State), Shards: make([]checkpoint.Part, len(c.addrs)),
	}
	for i, addr := range c.addrs {
		if addr == "" {
			set.Shards[i] = c.parts[i] //guard:part-of-absent-server
		}
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
	err = c.onOne(fmt.Sprintf("write the set of cut %d on", c.Number()), calling(ctx, pb.ParameterServerClient.WriteSet, &pb.WriteSetRequest{Cut: c.name, Set: text, State: about.State}))
	return text, err
}

// Abort drops the cut where it was begun.
func (c *cut) Abort(ctx context.Context) error {
	return c.all("abort", calling(ctx, pb.ParameterServerClient.AbortCut, &pb.AbortCutRequest{Cut: c.name}))
}

// Prune has the servers remove what only older sets need, except spared sets: the sets first, so that none is
// there without its checkpoints.
func (c *cut) Prune(ctx context.Context, keep int, spared []uint64) error {
	prune := calling(ctx, pb.ParameterServerClient.PruneSets, &pb.PruneSetsRequest{Cut: c.name, Keep: uint32(keep), Spared: spared})
	what := fmt.Sprintf("prune before cut %d on", c.Number())
	if err := c.onOne(what, prune); err != nil {
		return err
	}
	return c.client.all(c.addrs, what, prune)
}
