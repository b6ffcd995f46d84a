package psclient

import (
	"context"

	"trainmaster/master/pscontrol"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/placement"
)

// step is what moves at one time: some blocks, and when all of them are in their places, some slots of tables.
type step struct {
	blocks []placement.Move
	slots  []placement.SlotMove
}

// nextStep returns the next step toward the placement on goal servers.
func (c *Client) nextStep(ctx context.Context, addrs []string, table *placement.Table, goal int) (s step, err error) {
	s.blocks = table.Balance(goal)
	if s.blocks = s.blocks[:min(atOnce, len(s.blocks))]; len(s.blocks) > 0 {
		return s, nil
	}
	known := map[uint32]described{}
	s.slots, err = atOneTime(table.BalanceSlots(goal), func(m placement.SlotMove) (uint64, error) {
		d, there := known[m.From]
		if !there {
			if d, err = c.describe(ctx, addrs, int(m.From), table.Shards); err != nil {
				return 0, err
			}
			known[m.From] = d
		}
		return d.slotBytes(m), nil
	})
	return s, err
}

// atOneTime is the first of some moves: one at least, and as many as are little enough together.
func atOneTime(moves []placement.SlotMove, size func(placement.SlotMove) (uint64, error)) ([]placement.SlotMove, error) {
	bytes := uint64(0)
	for i, m := range moves {
		n, err := size(m)
		if err != nil {
			return nil, err
		}
		if bytes += n; i > 0 && (bytes > bytesAtOnce || i == slotsAtOnce) {
			return moves[:i], nil
		}
	}
	return moves, nil
}

// slotBytes estimates the size of the rows of a slot: ids are hashed, so the slots of a table have about the same size.
func (d described) slotBytes(m placement.SlotMove) uint64 {
	held := len(d.table.HeldSlots(int(m.Table), int(m.From)))
	if held == 0 || int(m.Table) >= len(d.bytes) {
		return 0
	}
	return d.bytes[m.Table] / uint64(held)
}

func (s step) empty() bool { return len(s.blocks)+len(s.slots) == 0 }

// apply changes the layout to that after the step.
func (s step) apply(l *placement.Layout) {
	for _, m := range s.blocks {
		l.Owners[m.Block] = m.To
	}
	for _, m := range s.slots {
		l.Slots[m.Table][m.Slot] = m.To
	}
}

// route is from one server to another.
type route struct{ from, to int }

// batch has the blocks and slots that take a route.
type batch struct {
	blocks []uint64
	slots  []*pb.TableSlots
}

// routes sorts the blocks and slots by route.
func (s step) routes() map[route]*batch {
	routes := map[route]*batch{}
	on := func(from, to uint32) *batch {
		r := route{int(from), int(to)}
		if routes[r] == nil {
			routes[r] = &batch{}
		}
		return routes[r]
	}
	for _, m := range s.blocks {
		b := on(m.From, m.To)
		b.blocks = append(b.blocks, m.Block)
	}
	for _, m := range s.slots {
		b := on(m.From, m.To)
		if n := len(b.slots); n == 0 || b.slots[n-1].GetTable() != m.Table {
			b.slots = append(b.slots, &pb.TableSlots{Table: m.Table})
		}
		last := b.slots[len(b.slots)-1]
		last.Slots = append(last.Slots, m.Slot)
	}
	return routes
}

// leftAfter is what there is to move to goal servers when the step is done.
func leftAfter(s step, before *placement.Table, goal int) pscontrol.Left {
	left := pscontrol.Left{
		Blocks: len(before.Balance(goal)) - len(s.blocks), AllBlocks: len(before.Owners),
		Slots: len(before.BalanceSlots(goal)) - len(s.slots),
	}
	for _, owners := range before.SlotOwners {
		left.AllSlots += len(owners)
	}
	return left
}
