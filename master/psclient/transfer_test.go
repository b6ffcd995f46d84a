package psclient

import (
	"errors"
	"testing"

	"trainmaster/master/pscontrol"
	"trainmaster/pserver/partition"
	"trainmaster/pserver/placement"
)

// A step moves as many partitions as fit its size, or one larger slot.
func TestPartitionsAtOneTime(t *testing.T) {
	moves := make([]placement.Move, 1000)
	for i := range moves {
		moves[i].Number = uint64(i)
	}
	for want, size := range map[int]func(number uint64) uint64{
		mostAtOnce: func(uint64) uint64 { return 100 },
		16:         func(uint64) uint64 { return blockBytes },
		1:          func(uint64) uint64 { return 1 << 30 },
		3:          func(number uint64) uint64 { return number * bytesAtOnce / 3 },
	} {
		got, err := atOneTime(moves, func(m placement.Move) (uint64, error) { return size(m.Number), nil })
		if err != nil || len(got) != want {
			t.Errorf("%d partitions, %v: expected %d", len(got), err, want)
		}
	}
	if got, err := atOneTime(nil, nil); len(got) > 0 || err != nil {
		t.Errorf("no moves: got %v, %v", got, err)
	}
	away := errors.New("away")
	if _, err := atOneTime(moves, func(placement.Move) (uint64, error) { return 0, away }); !errors.Is(err, away) {
		t.Errorf("expected the error of an absent server, found %v", err)
	}
}

// Blocks and the slots of each table have their own routes. After the step they are at their destinations.
func TestStepRoutesPartitionsByTable(t *testing.T) {
	moves := []placement.Move{
		{ID: partition.Block(4), From: 0, To: 1}, {ID: partition.Slot(0, 9), From: 0, To: 1}, {ID: partition.Slot(0, 8), From: 2, To: 1},
		{ID: partition.Slot(1, 9), From: 0, To: 1}, {ID: partition.Slot(1, 7), From: 0, To: 1},
	}
	routes := routesOf(moves)
	if l := routes[route{0, 1}]; len(routes) != 2 || len(l) != 3 || l[0].String() != "numbers:4" || l[2].GetTable() != 2 || len(l[2].GetNumbers()) != 2 {
		t.Errorf("%v", routes)
	}
	l := &placement.Layout{Owners: make(placement.Owners, 5), Slots: []placement.Owners{make(placement.Owners, 10), make(placement.Owners, 10)}}
	if _, err := advance(l, moves); err != nil {
		t.Fatal(err)
	}
	for want, owners := range map[string]placement.Owners{"0*4 1": l.Owners, "0*8 1*2": l.Slots[0], "0*7 1 0 1": l.Slots[1]} {
		if got, err := owners.MarshalText(); err != nil || string(got) != want {
			t.Errorf("expected %s, found %s, %v", want, got, err)
		}
	}
}

// The blocks and the slots of all tables that are not in their place are counted.
func TestRemainingPartitionsAreCounted(t *testing.T) {
	before := &placement.Table{Shards: 2, Owners: []uint32{0}, SlotOwners: [][]uint32{{0, 0, 1, 1}, {1, 1, 1, 0}}}
	moves := []placement.Move{{ID: partition.Block(0)}, {ID: partition.Slot(0, 2)}, {ID: partition.Slot(1, 0)}, {ID: partition.Slot(1, 1)}}
	if got, want := leftOf(moves, before), (pscontrol.Left{Blocks: 1, Slots: 3, AllBlocks: 1, AllSlots: 8}); got != want {
		t.Errorf("%+v, expected %+v", got, want)
	}
}
