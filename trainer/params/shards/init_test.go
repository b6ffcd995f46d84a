package shards

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"trainmaster/pserver"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/wire"
	"trainmaster/trainer/params/link"
	"trainmaster/trainer/params/plan"
	"trainmaster/trainer/params/stream"
)

func quiet() *logrus.Entry {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return logrus.NewEntry(log)
}

// claim is the registry of a server that has index 0.
type claim struct {
	claimed, lost chan struct{}
}

func (c *claim) ClaimPS(context.Context, string, func(string)) (pserver.Claim, error) {
	close(c.claimed)
	return c, nil
}
func (c *claim) Index() int                                        { return 0 }
func (c *claim) Job() pserver.JobState                             { return pserver.JobState{} }
func (c *claim) Current(context.Context) (pserver.JobState, error) { return c.Job(), nil }
func (c *claim) AskSet(context.Context) error                      { return nil }
func (c *claim) Lost() <-chan struct{}                             { return c.lost }
func (c *claim) Release(context.Context) error                     { return nil }

// start runs a parameter server of shard 0 until the test ends.
func start(t *testing.T) (addr string) {
	t.Helper()
	c := &claim{make(chan struct{}), make(chan struct{})}
	server, err := pserver.New(pserver.Config{Registry: c, Log: quiet(), DataSocket: pserver.SocketOff})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	<-c.claimed
	return server.Addr()
}

// Another server takes the shard over between the last parameters and FinishInit. It has no parameters, so it must not become ready.
// The trainer initializes it from the beginning.
func TestFinishInitAtSuccessorIsRefused(t *testing.T) {
	addr, successor := start(t), start(t)
	var replaced context.CancelCauseFunc // of the address in use
	set := New(Config{
		Link: link.Config{
			Addrs: func(context.Context) ([]string, error) { return []string{addr}, nil },
			During: func(parent context.Context, _ int, _ string) (ctx context.Context, release context.CancelFunc) {
				ctx, replaced = context.WithCancelCause(parent)
				cancel := replaced
				return ctx, func() { cancel(nil) }
			},
			RetryMin: time.Millisecond, RetryMax: time.Millisecond, Log: quiet(),
			Stream: stream.Config{Incarnation: 1, Sequence: new(atomic.Uint64), Timeout: time.Minute},
		},
		Optimizer: optimizer.Config{Kind: optimizer.SGD, LearningRate: 1}, DType: wire.Float32,
	}, []string{addr})
	t.Cleanup(func() { set.Close() })
	tensors := []plan.Tensor{{Name: "w", Shape: []int{3}, Data: []float32{1, 2, 3}}}
	if err := set.declare(tensors); err != nil {
		t.Fatal(err)
	}
	claimed, _, err := set.claim(t.Context())
	if err != nil || len(claimed) != 1 {
		t.Fatalf("%d shards claimed, %v: expected 1", len(claimed), err)
	}
	put := set.Tensors(wire.Put, 0, 0, tensors, nil)
	put.at = claimed
	if err := set.Do(t.Context(), put); err != nil {
		t.Fatal(err)
	}

	addr = successor
	replaced(errors.New("replaced"))
	err = set.finish(t.Context(), claimed)
	if status.Code(err) != codes.Aborted || !strings.Contains(err.Error(), "does not hold the claim") || !link.Again(err) {
		t.Errorf("FinishInit at the successor: %v, expected %v, after which Init begins again", err, codes.Aborted)
	}
	if err := set.initialize(t.Context(), tensors); err != nil {
		t.Fatal(err)
	}
	got := []plan.Tensor{{Name: "w", Shape: []int{3}, Data: make([]float32, 3)}}
	if _, err := set.Fetch(t.Context(), set.Tensors(wire.Pull, 0, 0, nil, got), 0); err != nil || !slices.Equal(got[0].Data, tensors[0].Data) {
		t.Errorf("the successor has %v, %v: expected %v", got[0].Data, err, tensors[0].Data)
	}
}
