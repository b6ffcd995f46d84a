package pserver_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"trainmaster/master/psclient"
	"trainmaster/master/pscontrol"
	"trainmaster/pserver"
	"trainmaster/trainer/params"
)

// otherJob is the id of a job whose server was killed. A server of the job of the test has its address now.
const otherJob = "0123456789abcdef0123456789abcdef"

// F527: a master of another job with a greater term changes nothing.
func TestMasterOfAnotherJobIsRefused(t *testing.T) {
	b := newBook(1)
	startServer(t, b, 0, pserver.Config{CheckpointDir: t.TempDir()})
	take := newSetTaker(t, b)
	start := small(constant(3))
	c := connect(t, b, params.Config{Mode: params.Async, Optimizer: heavy, Incarnation: 7, JobID: testJob})
	mustInit(t, c, clone(start))
	other := &psclient.Client{Addrs: b.complete, Present: b.complete, Registered: b.complete, JobID: func() string { return otherJob }}
	defer other.Close()
	calls := map[string]error{
		"Retire":   other.Retire(within(t), 9, [16]byte{1}, 100, nil, nil),
		"Rollback": other.Rollback(within(t), 9, 9, nil, nil),
		"States":   func() error { _, err := other.States(within(t)); return err }(),
		"Begin": func() error {
			_, err := other.Begin(within(t), pscontrol.CutRequest{Term: 9, Epoch: 9, Number: func(last uint64) uint64 { return last + 1 }})
			return err
		}(),
	}
	for call, err := range calls {
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "of another job") {
			t.Errorf("%s: %v, expected a refusal", call, err)
		}
	}
	mustPush(t, c, 1, small(constant(1)))
	if _, err := take.take(within(t)); err != nil { // of term 1
		t.Error(err)
	}
}

// F527: a trainer of another job with the same model and a greater incarnation trains nothing here. It waits for a server of its own job.
func TestTrainerOfAnotherJobIsRefused(t *testing.T) {
	b, own := newBook(1), newBook(1)
	own.job.ID = otherJob
	startServer(t, b, 0, pserver.Config{})
	start := small(constant(3))
	c := connect(t, b, params.Config{Mode: params.Async, Optimizer: heavy, Incarnation: 7, JobID: testJob})
	mustInit(t, c, clone(start))
	server := startServer(t, own, 0, pserver.Config{})
	other := connect(t, own, params.Config{Mode: params.Async, Optimizer: heavy, Incarnation: 8, JobID: otherJob, RetryMax: time.Millisecond})
	mustInit(t, other, clone(start))
	server.leave(t)
	foreign, _ := b.present(t.Context())
	own.set(0, foreign[0]) // as if the port were the same

	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := other.PushPull(ctx, 1, 1, small(constant(1)), small(constant(0))); err == nil {
		t.Error("the server of another job took a push")
	}
	if err := other.Init(ctx, clone(start)); err == nil {
		t.Error("the server of another job has the parameters of this one")
	}
	startServer(t, own, 0, pserver.Config{})
	mustInit(t, other, clone(start))
	mustPush(t, other, 1, small(constant(1)))
	values := small(constant(0))
	if _, err := c.Pull(within(t), values, 0); err != nil || !slices.Equal(values[0].Data, start[0].Data) {
		t.Errorf("%v: the parameters changed", err)
	}
}
