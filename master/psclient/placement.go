package psclient

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"trainmaster/master/pscontrol"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/placement/onwire"
)

// What moves in one step: pushes to it wait for that long.
const (
	atOnce      = 16       // blocks, of 1 MiB of parameters at most
	slotsAtOnce = 256      // slots of tables of embeddings
	bytesAtOnce = 16 << 20 // of their rows, unless one slot has more
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
	err = c.at(addrs, index, "describe", func(server pb.ParameterServerClient) error {
		reply, err := server.Describe(ctx, &pb.DescribeRequest{})
		if err != nil {
			return err
		}
		if reply.GetState() != pb.DescribeReply_STATE_READY {
			return fmt.Errorf("it %w", pscontrol.ErrServerNotReady)
		}
		d.model, d.bytes = reply.GetModel(), reply.GetTableBytes()
		d.table, err = onwire.FromProto(reply.GetPlacement())
		return err
	})
	return d, err
}

// at calls one server.
func (c *Client) at(addrs []string, index int, what string, call func(server pb.ParameterServerClient) error) error {
	conn, err := c.conn(index, addrs[index])
	if err == nil {
		err = call(pb.NewParameterServerClient(conn))
	}
	if err != nil {
		return fmt.Errorf("%s parameter server %d (%s): %w", what, index, addrs[index], err)
	}
	return nil
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

// SendPlacement implements [pscontrol.Servers]. Servers that receive blocks are called first: no server releases its copy before
// that. Servers that are no longer needed are called too, and end.
func (c *Client) SendPlacement(ctx context.Context, term uint64, stored []byte) error {
	layout, err := placement.ParseLayout(stored)
	if err != nil {
		return err
	}
	addrs, err := c.Registered(ctx)
	if err != nil {
		return err
	}
	c.forget(addrs)
	var errs []error
	for i := range layout.Shards {
		if i >= len(addrs) || addrs[i] == "" {
			errs = append(errs, missing(i, layout.Shards))
		}
	}
	var behind []int
	move := &pb.Move{Epoch: layout.Epoch, Term: term}
	for i, addr := range addrs {
		if addr == "" || i >= layout.Shards && i < layout.Goal {
			continue
		}
		if err := c.at(addrs, i, "send the placement to", func(server pb.ParameterServerClient) error {
			reply, err := server.SetPlacement(ctx, &pb.SetPlacementRequest{Move: move})
			if reply.GetWanted() {
				behind = append(behind, i)
			}
			return err
		}); err != nil && i < layout.Shards { // those beyond are ending
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	return c.sendTo(ctx, addrs, behind, &pb.SetPlacementRequest{Move: move}, layout)
}

// sendTo sends the placement to the servers that are behind, first to the servers that receive blocks.
func (c *Client) sendTo(ctx context.Context, addrs []string, behind []int, request *pb.SetPlacementRequest, layout *placement.Layout) error {
	if len(behind) == 0 {
		return nil
	}
	known := map[int]described{}
	for i := range layout.Shards {
		if d, err := c.describe(ctx, addrs, i, layout.Shards); err == nil {
			known[i] = d
		}
	}
	var one described
	for _, d := range known {
		one = d
	}
	if one.model == nil {
		return errors.New("no parameter server has parameters")
	}
	receives := func(i int) bool {
		d, there := known[i]
		return !there && layout.Owns(i) || there && layout.Gives(d.table, i)
	}
	placed, err := layout.Apply(one.table)
	if err != nil {
		return err
	}
	request.Model, request.Placement = one.model, onwire.ToProto(placed)
	for _, first := range []bool{true, false} {
		for _, i := range behind {
			if receives(i) != first {
				continue
			}
			if err := c.at(addrs, i, "send the placement to", func(server pb.ParameterServerClient) error {
				_, err := server.SetPlacement(ctx, request)
				return err
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkGoal returns an error unless all servers of the goal are registered and keep checkpoints alike.
func (c *Client) checkGoal(ctx context.Context, addrs []string, layout *placement.Layout) error {
	for i := layout.Shards; i < layout.Goal; i++ {
		if i >= len(addrs) || addrs[i] == "" {
			return missing(i, layout.Goal)
		}
	}
	return c.keepAlike(ctx, addrs[:layout.Goal])
}

// Plan implements [pscontrol.Servers].
func (c *Client) Plan(ctx context.Context, stored []byte) (next []byte, err error) {
	layout, err := placement.ParseLayout(stored)
	if err != nil {
		return nil, err
	}
	addrs, err := c.Registered(ctx)
	if err != nil {
		return nil, err
	}
	if layout.Goal == layout.Shards {
		return nil, nil
	}
	if layout.Goal > layout.Shards {
		if err := c.checkGoal(ctx, addrs, layout); err != nil {
			return nil, err
		}
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
	step{table.Balance(layout.Goal), table.BalanceSlots(layout.Goal)}.apply(layout)
	layout.Shards = layout.Goal
	return advance(layout)
}

// Dismiss implements [pscontrol.Servers].
func (c *Client) Dismiss(ctx context.Context, term uint64, epoch uint32, stored []byte) error {
	layout, err := placement.ParseLayout(stored)
	if err != nil {
		return err
	}
	addrs, err := c.Registered(ctx)
	if err != nil {
		return err
	}
	c.forget(addrs)
	addrs = slices.Clone(addrs)
	for i := range min(len(addrs), max(layout.Shards, layout.Goal)) {
		addrs[i] = ""
	}
	return c.all(addrs, "dismiss", func(_ int, server pb.ParameterServerClient) error {
		_, err := server.Rewind(ctx, &pb.RewindRequest{Term: term, JobEpoch: epoch, Placement: stored})
		return err
	})
}

// Move implements [pscontrol.Servers].
func (c *Client) Move(ctx context.Context, term uint64, stored []byte) (next []byte, left pscontrol.Left, err error) {
	layout, err := placement.ParseLayout(stored)
	if err != nil {
		return nil, left, err
	}
	addrs, err := c.Registered(ctx)
	if err != nil {
		return nil, left, err
	}
	if layout.Goal > layout.Shards {
		if err := c.checkGoal(ctx, addrs, layout); err != nil {
			return nil, left, err
		}
		layout.Shards = layout.Goal
		next, err = advance(layout)
		return next, left, err
	}
	d, err := c.describe(ctx, addrs, 0, layout.Shards)
	if err != nil {
		return nil, left, err
	}
	table, err := layout.Apply(d.table)
	if err != nil {
		return nil, left, err
	}
	step, err := c.nextStep(ctx, addrs, table, layout.Goal)
	if err != nil {
		return nil, left, err
	}
	if step.empty() && layout.Goal == layout.Shards {
		return nil, left, nil
	}
	if step.empty() {
		layout.Shards = layout.Goal
		next, err = advance(layout)
		return next, left, err
	}
	if err := c.transfer(ctx, addrs, &pb.Move{Epoch: layout.Epoch + 1, Term: term}, step); err != nil {
		return nil, left, err
	}
	left = leftAfter(step, table, layout.Goal) // before apply: the table and the layout may share their slices
	step.apply(layout)
	next, err = advance(layout)
	return next, left, err
}

func advance(l *placement.Layout) ([]byte, error) {
	l.Epoch++
	return l.Encode()
}

// transfer freezes the blocks of a step and copies them.
func (c *Client) transfer(ctx context.Context, addrs []string, move *pb.Move, s step) error {
	routes := s.routes()
	for r, batch := range routes {
		if err := c.at(addrs, r.from, "freeze blocks of", func(server pb.ParameterServerClient) error {
			_, err := server.FreezeBlocks(ctx, &pb.FreezeBlocksRequest{Move: move, Blocks: batch.blocks, Slots: batch.slots})
			return err
		}); err != nil {
			return err
		}
	}
	for r, batch := range routes {
		if err := c.at(addrs, r.to, fmt.Sprintf("take blocks of parameter server %d to", r.from), func(server pb.ParameterServerClient) error {
			_, err := server.TakeBlocks(ctx, &pb.TakeBlocksRequest{Move: move, Blocks: batch.blocks, Slots: batch.slots, Source: addrs[r.from]})
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}
