package pscontrol

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"trainmaster/master/component"
	"trainmaster/taskqueue"
)

// fakeTerm is a term of an empty queue whose mailboxes have the outstanding effects alone.
type fakeTerm struct {
	component.Term
	outstanding []taskqueue.Effect
}

func (*fakeTerm) Number() int64          { return 1 }
func (*fakeTerm) Clock() component.Clock { return component.MachineClock{} }

func (*fakeTerm) Read(_ context.Context, look func(*taskqueue.Queue)) error {
	look(&taskqueue.Queue{})
	return nil
}

func (f *fakeTerm) Effects(kinds ...taskqueue.EffectKind) *component.Mailbox {
	box := component.NewMailbox(kinds...)
	for _, e := range f.outstanding {
		box.Post(e)
	}
	return box
}

// answers are servers with set answers.
type answers struct {
	None
	faults    Faults
	faultsErr error
	stageRoom error
	committed chan taskqueue.Step
}

func (a *answers) Faults(context.Context) (Faults, error)         { return a.faults, a.faultsErr }
func (a *answers) CheckStageRoom(context.Context, int, int) error { return a.stageRoom }

func (a *answers) CommitStep(ctx context.Context, step taskqueue.Step) error {
	select {
	case a.committed <- step:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A new leader sends the last step of its predecessor although no event follows.
func TestStepIsSentFromOutstandingAlone(t *testing.T) {
	servers := &answers{committed: make(chan taskqueue.Step)}
	steps := New(Config{Servers: servers, Sync: true}).Steps()
	now := &fakeTerm{outstanding: []taskqueue.Effect{taskqueue.StepCommitted{Step: taskqueue.Step{Version: 7}}}}
	if err := steps.Prepare(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- steps.Run(ctx, now) }()
	if step := <-servers.committed; step.Version != 7 {
		t.Errorf("expected step 7, found %d", step.Version)
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// The faults of servers remain known while no server answers. The room for staged gradients is read each time.
func TestFaultsRemainWhileNoServerAnswers(t *testing.T) {
	servers := &answers{faults: Faults{Overflow: "w is +Inf"}, stageRoom: fmt.Errorf("%w: 3 trainers", ErrStageRoom)}
	now := newTerm(&fakeTerm{}, New(Config{Servers: servers, Sync: true}).config)
	full := Faults{Overflow: "w is +Inf", StageRoom: "no room for staged gradients: 3 trainers"}
	found := now.readFaults(t.Context(), Faults{})
	if found != full {
		t.Errorf("expected %+v, found %+v", full, found)
	}
	servers.faults, servers.faultsErr, servers.stageRoom = Faults{}, errors.New("no answer"), errors.New("no answer")
	if found = now.readFaults(t.Context(), found); found != (Faults{Overflow: "w is +Inf"}) {
		t.Errorf("no server answers: expected the overflow alone, found %+v", found)
	}
	servers.faultsErr = nil
	if found = now.readFaults(t.Context(), found); found != (Faults{}) {
		t.Errorf("servers answer: expected no fault, found %+v", found)
	}
}
