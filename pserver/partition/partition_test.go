package partition

import (
	"errors"
	"testing"
)

// admit locks the partition for Admit, and stores a new step.
func admit(p *Partition, t *Trainer, step uint64) (isNew bool, err error) {
	p.Lock()
	defer p.Unlock()
	if isNew, err = p.Admit(t, step); isNew {
		p.SetStep(t, step)
	}
	return isNew, err
}

// A trainer with the number of an ended trainer does not have the steps of the ended trainer. A lookup of the ended trainer does not
// remove the steps of its successor.
func TestStepsOfTrainersWithOneNumber(t *testing.T) {
	p := &Partition{}
	first, second := NewTrainer(3, 7), NewTrainer(3, 8)
	if isNew, err := admit(p, first, 5); !isNew || err != nil {
		t.Fatalf("first step: %v, %v", isNew, err)
	}
	if isNew, err := admit(p, first, 5); isNew || err != nil {
		t.Errorf("repeated step: %v, %v", isNew, err)
	}
	first.End()
	if _, err := admit(p, first, 6); !errors.Is(err, ErrEnded) {
		t.Errorf("step of an ended trainer: %v", err)
	}
	if isNew, err := admit(p, second, 1); !isNew || err != nil {
		t.Errorf("first step of the successor: %v, %v", isNew, err)
	}
	p.See(first, 9)
	if _, known := p.Seen(first); known || p.Step(second) != 1 {
		t.Errorf("after a lookup of the ended trainer: expected step 1 of the successor, found %d", p.Step(second))
	}
	if p.See(second, 0); p.Step(second) != 1 {
		t.Errorf("after a lookup: expected step 1, found %d", p.Step(second))
	}
	if updates, known := p.Seen(second); updates != 0 || !known {
		t.Errorf("expected 0 updates seen, found %d, %v", updates, known)
	}
}

// A frozen partition refuses updates until it is thawed, and can be read. A partition that has left refuses all updates.
func TestMigrationOfPartition(t *testing.T) {
	p, by := &Partition{}, NewTrainer(0, 1)
	if p.WhileFrozen(p.Frozen(), func() { t.Error("read without a freeze") }) {
		t.Error("partition is frozen from the start")
	}
	p.Freeze()
	until := p.Frozen()
	p.Freeze()
	read := false
	if !p.WhileFrozen(until, func() { read = true }) || !read {
		t.Error("frozen partition cannot be read")
	}
	var frozen ErrFrozen
	if _, err := admit(p, by, 1); !errors.As(err, &frozen) || frozen.Until != until {
		t.Errorf("update of a frozen partition: %v", err)
	}
	p.Thaw()
	<-frozen.Until
	if isNew, err := admit(p, by, 1); !isNew || err != nil {
		t.Errorf("update after the migration: %v, %v", isNew, err)
	}
	p.Freeze()
	if p.WhileFrozen(until, func() { t.Error("read of an ended migration") }) {
		t.Error("partition is frozen for an ended migration")
	}
	until, dropped := p.Frozen(), false
	p.Leave(func() { dropped = true })
	<-until
	if _, err := admit(p, by, 2); !errors.Is(err, ErrMoved) || !dropped {
		t.Errorf("update of a partition that has left: %v, dropped %v", err, dropped)
	}
}
