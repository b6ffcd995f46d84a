package psclient

import (
	"context"
	"fmt"

	"trainmaster/master/pscontrol"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/placement"
)

// transfer freezes and copies the partitions of the next step toward the goal. It returns their moves, and counts the remaining moves.
func (c *Client) transfer(ctx context.Context, addrs []string, move *pb.Move, layout *placement.Layout) (moves []placement.Move, left pscontrol.Left, err error) {
	d, err := c.describe(ctx, addrs, 0, layout.Shards)
	if err != nil {
		return nil, left, err
	}
	table, err := layout.Apply(d.table)
	if err != nil {
		return nil, left, err
	}
	all := table.Balance(layout.Goal)
	known := map[uint32]described{0: d}
	if moves, err = atOneTime(all, func(m placement.Move) (uint64, error) {
		if m.Table == 0 {
			return blockBytes, nil
		}
		if _, there := known[m.From]; !there {
			if known[m.From], err = c.describe(ctx, addrs, int(m.From), layout.Shards); err != nil {
				return 0, err
			}
		}
		return known[m.From].slotBytes(m), nil
	}); err != nil {
		return nil, left, err
	}
	routes := routesOf(moves)
	for r, batch := range routes {
		if err := c.at(addrs, r.from, "freeze blocks of", calling(ctx, pb.ParameterServerClient.Freeze, &pb.FreezeRequest{Move: move, Partitions: batch})); err != nil {
			return nil, left, err
		}
	}
	for r, batch := range routes {
		if err := c.at(addrs, r.to, fmt.Sprintf("take blocks of parameter server %d to", r.from), calling(ctx, pb.ParameterServerClient.Take, &pb.TakeRequest{Move: move, Partitions: batch, Source: addrs[r.from]})); err != nil {
			return nil, left, err
		}
	}
	return moves, leftOf(all[len(moves):], table), nil
}

// atOneTime returns the first moves: at least one, and at most as many as fit one step.
func atOneTime(moves []placement.Move, size func(placement.Move) (uint64, error)) ([]placement.Move, error) {
	bytes := uint64(0)
	for i, m := range moves {
		n, err := size(m)
		if err != nil {
			return nil, err
		}
		if bytes += n; i > 0 && (bytes > bytesAtOnce || i == mostAtOnce) {
			return moves[:i], nil
		}
	}
	return moves, nil
}

// slotBytes estimates the size of the rows of a slot: ids are hashed, so the slots of a table have about the same size.
func (d described) slotBytes(m placement.Move) uint64 {
	k := int(m.Table) - 1
	slots := len(d.table.HeldSlots(k, int(m.From)))
	if slots == 0 || k >= len(d.bytes) {
		return 0
	}
	return d.bytes[k] / uint64(slots)
}

// route is from one server to another.
type route struct{ from, to int }

// routesOf sorts moves by route.
func routesOf(moves []placement.Move) map[route][]*pb.Partitions {
	routes := map[route][]*pb.Partitions{}
	for _, m := range moves {
		r := route{int(m.From), int(m.To)}
		if n := len(routes[r]); n == 0 || routes[r][n-1].GetTable() != m.Table {
			routes[r] = append(routes[r], &pb.Partitions{Table: m.Table})
		}
		last := routes[r][len(routes[r])-1]
		last.Numbers = append(last.Numbers, m.Number)
	}
	return routes
}

// leftOf counts the partitions of the remaining moves.
func leftOf(moves []placement.Move, t *placement.Table) pscontrol.Left {
	left := pscontrol.Left{AllBlocks: len(t.Owners)}
	for _, m := range moves {
		if m.Table == 0 {
			left.Blocks++
		} else {
			left.Slots++
		}
	}
	for _, owners := range t.SlotOwners {
		left.AllSlots += len(owners)
	}
	return left
}
