package psclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"trainmaster/master/pscontrol"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/onwire"
	"trainmaster/pserver/placement"
)

// What moves in one step: pushes to it wait for that long.
const (
	mostAtOnce  = 256      // partitions
	bytesAtOnce = 16 << 20 // of blocks and rows, unless one slot has more
	blockBytes  = 1 << 20  // of the parameters of a block, at most
)

var _ pscontrol.Servers = (*Client)(nil)

// described is the model as a server reports it.
type described struct {
	model *pb.ParameterModel
	table *placement.Table
	bytes []uint64 // of the rows there, by table of embeddings
}

// describe asks one of some servers.
func (c *Client) describe(ctx context.Context, addrs []string, index, servers int) (d described, err error) {
	if index >= len(addrs) || addrs[index] == "" {
		return d, missing(index, servers)
	}
	err = c.at(addrs, index, "describe", func(_ int, server pb.ParameterServerClient) error {
		reply, err := server.Describe(ctx, &pb.DescribeRequest{})
		if err != nil {
			return err
		}
		if reply.GetState() != pb.DescribeReply_STATE_READY {
			return fmt.Errorf("it %w", pscontrol.ErrServerNotReady)
		}
		d.model, d.bytes = reply.GetModel(), reply.GetTableBytes()
		d.table, err = onwire.PlacementFromProto(reply.GetPlacement())
		return err
	})
	return d, err
}

// at calls one server.
func (c *Client) at(addrs []string, index int, what string, call func(i int, server pb.ParameterServerClient) error) error {
	only := make([]string, index+1)
	only[index] = addrs[index]
	return c.all(only, what, call)
}

// Resize implements [pscontrol.Servers].
func (c *Client) Resize(ctx context.Context, stored []byte, servers int) ([]byte, error) {
	if servers < 1 || servers > placement.MaxShards {
		return nil, fmt.Errorf("%d parameter servers: expected 1 to %d", servers, placement.MaxShards)
	}
	if stored != nil {
		layout, err := placement.ParseLayout(stored)
		if err != nil {
			return nil, err
		}
		layout.Goal = servers
		return layout.Encode()
	}
	addrs, err := c.whole(ctx)
	if errors.Is(err, pscontrol.ErrNothingToCut) {
		return nil, pscontrol.ErrNoServers
	}
	if err != nil {
		return nil, err
	}
	d, err := c.describe(ctx, addrs, 0, len(addrs))
	if err != nil {
		return nil, err
	}
	for i := 1; i < d.table.Shards; i++ {
		other, err := c.describe(ctx, addrs, i, d.table.Shards)
		if err != nil {
			return nil, err
		}
		if other.table.Digest() != d.table.Digest() {
			return nil, fmt.Errorf("parameter servers 0 and %d have other placements", i)
		}
	}
	layout := placement.LayoutOf(d.table, servers)
	layout.Epoch++ // so that all servers receive it before the first migration
	return layout.Encode()
}

// Extent implements [pscontrol.Servers].
func (c *Client) Extent(stored []byte) (pscontrol.Extent, error) {
	layout, err := placement.ParseLayout(stored)
	if err != nil {
		return pscontrol.Extent{}, err
	}
	return pscontrol.Extent{Servers: layout.Shards, Goal: layout.Goal, Epoch: layout.Epoch}, nil
}

// Addresses implements [pscontrol.Servers].
func (c *Client) Addresses(ctx context.Context) ([]string, error) { return c.Registered(ctx) }

// placed reads a stored placement and finds the registered servers.
func (c *Client) placed(ctx context.Context, stored []byte) (*placement.Layout, []string, error) {
	layout, err := placement.ParseLayout(stored)
	if err != nil {
		return nil, nil, err
	}
	addrs, err := c.Registered(ctx)
	if err == nil {
		c.forget(addrs)
	}
	return layout, addrs, err
}

// SendPlacement implements [pscontrol.Servers]. A server that only gives partitions away, or needs the model, requests a second call: no
// server releases its copy before the others have switched. Servers that are no longer needed are called too, and end.
func (c *Client) SendPlacement(ctx context.Context, term uint64, stored []byte) error {
	layout, addrs, err := c.placed(ctx, stored)
	if err != nil {
		return err
	}
	var errs []error
	for i := range layout.Shards {
		if i >= len(addrs) || addrs[i] == "" {
			errs = append(errs, missing(i, layout.Shards))
		}
	}
	request := &pb.SetPlacementRequest{Term: term, Placement: stored}
	var wanted []int
	for i, addr := range addrs {
		if addr == "" || i >= layout.Shards && i < layout.Goal {
			continue
		}
		if err := c.setPlacement(ctx, addrs, i, request, &wanted); err != nil && i < layout.Shards { // servers beyond are ending
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 || len(wanted) == 0 {
		return errors.Join(errs...)
	}
	if request.Model, err = c.anyModel(ctx, addrs, layout.Shards); err != nil {
		return err
	}
	for _, i := range wanted {
		if err := c.setPlacement(ctx, addrs, i, request, nil); err != nil {
			return err
		}
	}
	return nil
}

// setPlacement calls one server, and notes whether it must be called again.
func (c *Client) setPlacement(ctx context.Context, addrs []string, i int, request *pb.SetPlacementRequest, wanted *[]int) error {
	return c.at(addrs, i, "send the placement to", func(_ int, server pb.ParameterServerClient) error {
		reply, err := server.SetPlacement(ctx, request)
		if reply.GetWanted() && wanted != nil {
			*wanted = append(*wanted, i)
		}
		return err
	})
}

// anyModel is the model of the first server that has parameters.
func (c *Client) anyModel(ctx context.Context, addrs []string, servers int) (*pb.ParameterModel, error) {
	for i := range servers {
		if d, err := c.describe(ctx, addrs, i, servers); err == nil {
			return d.model, nil
		}
	}
	return nil, errors.New("no parameter server has parameters")
}

// checkGoal returns an error unless all servers of a greater goal are registered and keep checkpoints alike.
func (c *Client) checkGoal(ctx context.Context, addrs []string, layout *placement.Layout) error {
	for i := layout.Shards; i < layout.Goal; i++ {
		if i >= len(addrs) || addrs[i] == "" {
			return missing(i, layout.Goal)
		}
	}
	if layout.Goal <= layout.Shards {
		return nil
	}
	servers, err := c.brief(ctx, addrs[:layout.Goal])
	return cmp.Or(err, checkKept(addrs, servers)) // the job would have no checkpoints any more if only some kept them
}

// Plan implements [pscontrol.Servers].
func (c *Client) Plan(ctx context.Context, stored []byte) (next []byte, err error) {
	layout, addrs, err := c.placed(ctx, stored)
	if err != nil || layout.Goal == layout.Shards {
		return nil, err
	}
	if err := c.checkGoal(ctx, addrs, layout); err != nil {
		return nil, err
	}
	d, err := c.describe(ctx, addrs, 0, layout.Shards)
	if err != nil {
		return nil, err
	}
	layout.Shards = max(layout.Shards, layout.Goal)
	table, err := layout.Apply(d.table)
	if err != nil {
		return nil, err
	}
	layout.Shards = layout.Goal
	return advance(layout, table.Balance(layout.Goal))
}

// Dismiss implements [pscontrol.Servers].
func (c *Client) Dismiss(ctx context.Context, term uint64, epoch uint32, stored []byte) error {
	layout, addrs, err := c.placed(ctx, stored)
	if err != nil {
		return err
	}
	addrs = slices.Clone(addrs)
	for i := range min(len(addrs), max(layout.Shards, layout.Goal)) {
		addrs[i] = ""
	}
	return c.all(addrs, "dismiss", calling(ctx, pb.ParameterServerClient.Rewind, &pb.RewindRequest{Term: term, JobEpoch: epoch, Placement: stored}))
}

// Move implements [pscontrol.Servers]. New servers get the placement before the first partition, and servers that are not needed keep it
// until the last partition has left.
func (c *Client) Move(ctx context.Context, term uint64, stored []byte) (next []byte, left pscontrol.Left, err error) {
	layout, addrs, err := c.placed(ctx, stored)
	if err != nil {
		return nil, left, err
	}
	var moves []placement.Move
	grows := layout.Goal > layout.Shards
	if err := c.checkGoal(ctx, addrs, layout); err != nil {
		return nil, left, err
	}
	if !grows {
		if moves, left, err = c.transfer(ctx, addrs, &pb.Move{Epoch: layout.Epoch + 1, Term: term}, layout); err != nil {
			return nil, left, err
		}
	}
	if len(moves) == 0 {
		if layout.Goal == layout.Shards {
			return nil, left, nil
		}
		layout.Shards = layout.Goal
	}
	next, err = advance(layout, moves)
	return next, left, err
}

// advance returns the layout after some moves.
func advance(l *placement.Layout, moves []placement.Move) ([]byte, error) {
	for _, m := range moves {
		*l.Owner(m.ID) = m.To
	}
	l.Epoch++
	return l.Encode()
}
