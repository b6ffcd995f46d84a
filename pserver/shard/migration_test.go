package shard

import (
	"errors"
	"testing"
	"time"

	"trainmaster/pserver/partition"
	"trainmaster/pserver/placement"
)

// readyShard is a shard with one block of zeros.
func readyShard(t *testing.T) *Shard {
	t.Helper()
	s := New(nil, 0, 1, time.Minute, 1<<20)
	if o, _, _, err := s.Claim(modelOf(t, 3), 0, 1, time.Now()); o != OutcomeClaimed || err != nil {
		t.Fatal(o, err)
	}
	h := s.View()
	if refused := s.Put(h, h.blocks[0], 1, Values{Floats: make([]float32, 3)}, time.Now()); refused != nil {
		t.Fatal(refused)
	}
	if err := s.Finish(1, false); err != nil {
		t.Fatal(err)
	}
	return s
}

func mustJoin(t *testing.T, s *Shard, ordinal uint32, incarnation uint64) *Trainer {
	t.Helper()
	m := s.View().Model()
	who, _, refused := s.Join(ordinal, incarnation, m.Digest, m.Placement.Epoch)
	if refused != nil {
		t.Fatal(refused)
	}
	return who
}

// A cut has the step of a trainer that ends during the cut: another trainer gets its number only after the cut.
func TestCutHasStepsOfEndedTrainer(t *testing.T) {
	s := readyShard(t)
	h := s.View()
	push := func(by *Trainer, step uint64) {
		t.Helper()
		if _, refused := s.Push(h, h.blocks[0], by, Update{Step: step, Scale: 1}, Values{Floats: make([]float32, 3)}, nil); refused != nil {
			t.Fatal(refused)
		}
	}
	gone := mustJoin(t, s, 0, 10)
	push(gone, 4)
	cut := s.StartCut(nil)
	mustJoin(t, s, 0, 11)
	another := mustJoin(t, s, 1, 12)
	push(another, 1)
	if image := h.blocks[0].Collect(cut); len(image.Applied) != 1 || image.Applied[0] != 4 {
		t.Errorf("expected step 4 of the trainer in the cut, found %v", image.Applied)
	}
	s.EndCut(h)
	if again := mustJoin(t, s, 2, 13); again.Number() != gone.Number() {
		t.Errorf("after the cut: expected number %d for the next trainer, found %d", gone.Number(), again.Number())
	}
}

// A partition that is not frozen, or no more, is not read.
func TestReadOfPartitionThatIsNotFrozen(t *testing.T) {
	s := readyShard(t)
	next, block := Move{Term: 1, Epoch: 2}, partition.Block(0)
	read := func() error { return s.Read(next, block, func(*Piece) error { return nil }) }
	if err := read(); !errors.Is(err, ErrOldMove) {
		t.Errorf("before the freeze: %v", err)
	}
	if err := s.Freeze(t.Context(), next, []partition.ID{block}, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := read(); err != nil {
		t.Errorf("frozen: %v", err)
	}
	if wanted, err := s.Settle(1, placement.LayoutOf(s.View().Model().Placement, 1), nil, time.Now()); wanted || err != nil {
		t.Fatal(wanted, err)
	}
	if err := read(); !errors.Is(err, ErrOldMove) {
		t.Errorf("after the migration: %v", err)
	}
	for _, id := range []partition.ID{partition.Block(1), partition.Slot(0, 0), {Table: 9, Number: 1 << 40}} {
		if err := s.Freeze(t.Context(), next, []partition.ID{id}, time.Now()); !errors.Is(err, ErrMismatch) {
			t.Errorf("freeze of %v: %v", id, err)
		}
	}
}

// A shard that only gives partitions away keeps them until it is called again with the model.
func TestSourceSwitchesAfterTheDestinations(t *testing.T) {
	s := readyShard(t)
	m := s.View().Model()
	given := placement.LayoutOf(m.Placement, 2)
	given.Epoch, given.Shards, given.Owners[0] = 2, 2, 1
	for _, again := range []bool{false, true} {
		first := m
		if !again {
			first = nil
		}
		if wanted, err := s.Settle(1, given, first, time.Now()); wanted == again || err != nil {
			t.Errorf("called again %v: wanted %v, %v", again, wanted, err)
		}
		if held := len(s.View().blocks) > 0; held == again {
			t.Errorf("called again %v: holds the block %v", again, held)
		}
	}
}
