package psclient

import (
	"errors"
	"testing"

	"trainmaster/master/pscontrol"
	"trainmaster/pserver/placement"
)

// A step moves as many slots as fit its size, or one larger slot.
func TestSlotsAtOneTime(t *testing.T) {
	moves := make([]placement.SlotMove, 1000)
	for i := range moves {
		moves[i].Slot = uint32(i)
	}
	for want, size := range map[int]func(slot uint32) uint64{
		slotsAtOnce: func(uint32) uint64 { return 100 },
		16:          func(uint32) uint64 { return 1 << 20 },
		1:           func(uint32) uint64 { return 1 << 30 },
		3:           func(slot uint32) uint64 { return uint64(slot) * bytesAtOnce / 3 },
	} {
		got, err := atOneTime(moves, func(m placement.SlotMove) (uint64, error) { return size(m.Slot), nil })
		if err != nil || len(got) != want {
			t.Errorf("%d slots, %v: expected %d", len(got), err, want)
		}
	}
	if got, err := atOneTime(nil, nil); len(got) > 0 || err != nil {
		t.Errorf("no moves: got %v, %v", got, err)
	}
	away := errors.New("away")
	if _, err := atOneTime(moves, func(placement.SlotMove) (uint64, error) { return 0, away }); !errors.Is(err, away) {
		t.Errorf("expected the error of an absent server, found %v", err)
	}
}

// Each table has its own routes of slots. After the step the slots are at their destinations.
func TestStepRoutesSlotsByTable(t *testing.T) {
	s := step{slots: []placement.SlotMove{{Table: 0, Slot: 9, From: 0, To: 1}, {Table: 0, Slot: 8, From: 2, To: 1}, {Table: 1, Slot: 9, From: 0, To: 1}, {Table: 1, Slot: 7, From: 0, To: 1}}}
	routes := s.routes()
	if l := routes[route{0, 1}]; len(routes) != 2 || len(l.slots) != 2 || l.slots[0].String() != "slots:9" || l.slots[1].GetTable() != 1 || len(l.slots[1].GetSlots()) != 2 {
		t.Errorf("%v", routes)
	}
	l := &placement.Layout{Slots: []placement.Owners{make(placement.Owners, 10), make(placement.Owners, 10)}}
	s.apply(l)
	if got, err := l.Slots[1].MarshalText(); err != nil || string(got) != "0*7 1 0 1" {
		t.Errorf("%s, %v", got, err)
	}
}

// The remaining slots of all tables are counted after the step.
func TestRemainingSlotsAreCountedAfterStep(t *testing.T) {
	before := &placement.Table{Shards: 2, SlotOwners: [][]uint32{{0, 0, 1, 1}, {1, 1, 1, 0}}}
	s := step{slots: before.BalanceSlots(1)[:2]}
	if got, want := leftAfter(s, before, 1), (pscontrol.Left{Slots: 3, AllSlots: 8}); got != want {
		t.Errorf("%+v, expected %+v", got, want)
	}
}
