package pscontrol

import (
	"context"
	"errors"
	"strings"
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
	states    []ServerState
	statesErr error
	committed chan taskqueue.Step
	rates     chan taskqueue.RateChange
}

func (a *answers) SetLearningRate(ctx context.Context, _ uint64, rate taskqueue.RateChange) error {
	select {
	case a.rates <- rate:
		return errors.New("no answer")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *answers) States(context.Context) ([]ServerState, error) { return a.states, a.statesErr }

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
	servers := &answers{states: []ServerState{{Overflow: "w is +Inf", StageNeed: 9, StageLimit: 8}}}
	now := newTerm(&fakeTerm{}, New(Config{Servers: servers, Sync: true}).config)
	full := Faults{Overflow: "parameter server 0: w is +Inf", StageRoom: "no room for staged gradients: parameter server 0: expected at most 8 bytes (--stage-bytes), found 1 trainers with 9 bytes each: start the servers with a greater --stage-bytes, or add servers with master scale"}
	found := now.readFaults(t.Context(), Faults{})
	if found != full {
		t.Errorf("expected %+v, found %+v", full, found)
	}
	servers.states, servers.statesErr = make([]ServerState, 1), errors.New("no answer")
	if found = now.readFaults(t.Context(), found); found != (Faults{Overflow: full.Overflow}) {
		t.Errorf("no server answers: expected the overflow alone, found %+v", found)
	}
	servers.statesErr = nil
	if found = now.readFaults(t.Context(), found); found != (Faults{}) {
		t.Errorf("servers answer: expected no fault, found %+v", found)
	}
}

// The size of the gradients of all trainers is compared with the limit of each server, for the present and a planned number of servers.
func TestStageRoomIsCheckedNowAndBeforeAScale(t *testing.T) {
	states := []ServerState{{StageNeed: 60, StageLimit: 200}, {StageNeed: 40, StageLimit: 200}}
	for _, try := range []struct {
		trainers, servers int
		says              string // "": the gradients fit
	}{
		{3, 0, ""},
		{4, 0, "parameter server 0: expected at most 200 bytes (--stage-bytes), found 4 trainers with 60 bytes each"},
		{2, 1, ""},
		{3, 1, "on 1 parameter servers: expected at most 200 bytes (--stage-bytes), found 3 trainers with 100 bytes each"},
		{4, 3, ""},
	} {
		now := newTerm(&fakeTerm{}, New(Config{Sync: true, Backups: -try.trainers}).config) // the queue has no trainer
		err := now.checkStageRoom(t.Context(), states, try.servers)
		if try.says == "" && err != nil || try.says != "" && (!errors.Is(err, ErrStageRoom) || !strings.Contains(err.Error(), try.says)) {
			t.Errorf("%d trainers, %d servers: %v, expected %q", try.trainers, try.servers, err, try.says)
		}
	}
	now := newTerm(&fakeTerm{}, New(Config{Sync: true, Backups: -1000}).config)
	for what, state := range map[string]ServerState{"asynchronous, or without parameters": {Present: true}, "missing": {}} {
		if err := now.checkStageRoom(t.Context(), append(states, state), 1); err != nil {
			t.Errorf("a server that is %s: %v", what, err)
		}
	}
}

// A new leader sends the learning rate of its predecessor although no event follows, and again after an error.
func TestLearningRateIsSentFromOutstandingAlone(t *testing.T) {
	servers := &answers{rates: make(chan taskqueue.RateChange)}
	rates := New(Config{Servers: servers}).learningRates()
	want := taskqueue.RateChange{Number: 2, Scale: 0.5}
	now := &fakeTerm{outstanding: []taskqueue.Effect{taskqueue.RateChanged{RateChange: want}}}
	if err := rates.Prepare(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- rates.Run(ctx, now) }()
	for range 2 {
		if rate := <-servers.rates; rate != want {
			t.Errorf("expected %+v, found %+v", want, rate)
		}
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// The factor relates to the rate that any server of the job names. A server without an answer does not block a change.
func TestRateScaleNeedsOneServer(t *testing.T) {
	servers := &answers{states: []ServerState{{}, {Present: true, LearningRate: 0.5}}, statesErr: errors.New("no answer")}
	c := New(Config{Servers: servers})
	if scale, err := c.RateScale(t.Context(), 0.25); scale != 0.5 || err != nil {
		t.Errorf("expected 0.5, found %v, %v", scale, err)
	}
	servers.states = []ServerState{{Present: true}}
	if _, err := c.RateScale(t.Context(), 0.01); err == nil || err.Error() != "no answer" {
		t.Errorf("expected the error of the server, found %v", err)
	}
	servers.statesErr = nil
	if _, err := c.RateScale(t.Context(), 0.01); !errors.Is(err, ErrServerNotReady) {
		t.Errorf("expected %v, found %v", ErrServerNotReady, err)
	}
	if _, err := New(Config{}).RateScale(t.Context(), 0.01); !errors.Is(err, ErrNoServers) {
		t.Errorf("expected %v, found %v", ErrNoServers, err)
	}
}
