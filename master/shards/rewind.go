package shards

import (
	"context"
	"fmt"
	"slices"

	"trainmaster/master"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/checkpoint"
)

// States says how the servers are, by index; nil for a job without.
func (c *Client) States(ctx context.Context) ([]master.ShardState, error) {
	addrs, err := c.Present(ctx)
	if err != nil {
		return nil, fmt.Errorf("find the parameter servers: %w", err)
	}
	states := make([]master.ShardState, len(addrs))
	for _, addr := range addrs {
		if addr == "" {
			return states, nil
		}
	}
	c.forget(addrs)
	return states, c.all(addrs, "describe", func(i int, server pb.ParameterServerClient) error {
		reply, err := server.Describe(ctx, &pb.DescribeRequest{})
		states[i] = master.ShardState{Present: err == nil, Ready: reply.GetState() == pb.DescribeReply_STATE_READY, Rewound: reply.GetRewound(), LastCut: reply.GetLastCut()}
		return err
	})
}

// Rewind brings all servers to a set, or with none to no parameters; placed is where their blocks lie.
func (c *Client) Rewind(ctx context.Context, term uint64, epoch uint32, set, placed []byte) error {
	addrs, err := c.Addrs(ctx)
	if err != nil {
		return fmt.Errorf("find the parameter servers: %w", err)
	}
	c.forget(addrs)
	return c.all(addrs, "rewind", func(_ int, server pb.ParameterServerClient) error {
		_, err := server.Rewind(ctx, &pb.RewindRequest{Term: term, JobEpoch: epoch, Set: set, Placement: placed})
		return err
	})
}

// Retire tells all servers that are there which incarnations are over.
func (c *Client) Retire(ctx context.Context, job [16]byte, floor uint64, spared []uint64) error {
	registered, err := c.Registered(ctx)
	if err != nil {
		return fmt.Errorf("find the parameter servers: %w", err)
	}
	addrs := slices.DeleteFunc(slices.Clone(registered), func(addr string) bool { return addr == "" })
	request := &pb.RetireRequest{Retired: &pb.Retirement{Job: job[:], Floor: floor, Spared: spared}}
	return c.all(addrs, "retire trainers at", func(_ int, server pb.ParameterServerClient) error {
		_, err := server.Retire(ctx, request)
		return err
	})
}

// SetAt reads from a set its number and the version of its parameters.
func (c *Client) SetAt(set []byte) (number, version uint64, err error) {
	s, err := checkpoint.ParseSet(set)
	if err != nil {
		return 0, 0, err
	}
	return s.Number, s.Version, nil
}
