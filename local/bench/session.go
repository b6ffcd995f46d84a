package bench

import (
	"context"
	"fmt"
	"io"
	"time"

	"trainmaster/local/bench/load"
)

// Via says how a load reaches the queue.
type Via string

// The ways.
const (
	InProcess     Via = "inproc"
	NetRPC        Via = "netrpc"         // Next, as the project's own client
	NetRPCPlain   Via = "netrpc-plain"   // GetTask
	GRPC          Via = "grpc"           // PushResult, with a request for the next task
	GRPCTwoCalls  Via = "grpc-two-calls" // PushResult and GetTask
	Stream        Via = "stream"         // the stream Work
	Literal       Via = "literal"        // GetTask of the baseline
	LiteralShared Via = "literal-shared" // of the baseline with the project's own encoder
)

// Vias are all ways.
var Vias = []Via{InProcess, NetRPC, NetRPCPlain, GRPC, GRPCTwoCalls, Stream, Literal, LiteralShared}

func (v Via) literal() bool { return v == Literal || v == LiteralShared }

func (v Via) grpc() bool { return v == GRPC || v == GRPCTwoCalls || v == Stream }

// session is a load that works already and waits to be measured.
type session interface {
	// measure calls ended as soon as it counts no more.
	measure(ctx context.Context, length time.Duration, ended func()) (loadResult, error)
	leave(ctx context.Context) error
}

// loadResult has the figures of a load. CPU is the processor time of the process of the load, or 0 in the process of the master.
type loadResult struct {
	load.Result
	CPU time.Duration
}

// warmUp is how long a load works before it may be measured.
const warmUp = 250 * time.Millisecond

// local is a load in this process.
type local struct{ *load.Load }

func startLocal(ctx context.Context, trainers []load.Trainer) (local, error) {
	l, err := load.Start(ctx, trainers)
	if err != nil {
		return local{}, err
	}
	select {
	case <-time.After(warmUp):
	case <-ctx.Done():
	}
	return local{l}, nil
}

func (l local) measure(ctx context.Context, length time.Duration, ended func()) (loadResult, error) {
	r, err := l.Measure(ctx, length, ended)
	return loadResult{Result: r}, err
}

func (l local) leave(ctx context.Context) error { return l.Leave(ctx) }

const roleLoad = "load"

// loadConfig is a load in a process of its own.
type loadConfig struct {
	Via     Via
	Addr    string
	Callers int
	Length  time.Duration
}

func (c *loadConfig) trainers() ([]load.Trainer, error) {
	trainers := make([]load.Trainer, c.Callers)
	for i := range trainers {
		switch c.Via {
		case NetRPC:
			trainers[i] = load.Joined(c.Addr, trainerID(i))
		case GRPC:
			trainers[i] = load.OneCall(c.Addr, trainerID(i))
		case GRPCTwoCalls:
			trainers[i] = load.TwoCalls(c.Addr, trainerID(i))
		case Stream:
			trainers[i] = load.Streamed(c.Addr, trainerID(i))
		case NetRPCPlain, Literal, LiteralShared:
			trainers[i] = load.Plain(c.Addr)
		default:
			return nil, fmt.Errorf("no load of its own for %q", c.Via)
		}
	}
	return trainers, nil
}

func trainerID(i int) string { return fmt.Sprintf("trainer-%d", i) }

// serve reports that it is ready and waits for its parent. It measures, reports the end of the count and then the figures, and leaves
// when its parent continues.
func (c *loadConfig) serve(ctx context.Context, p *parent) error {
	trainers, err := c.trainers()
	if err != nil {
		return err
	}
	l, err := startLocal(ctx, trainers)
	if err != nil {
		return err
	}
	if err := p.out.Encode(struct{}{}); err != nil || !p.await() {
		return err
	}
	cpu := processorTime()
	result, err := l.measure(ctx, c.Length, func() {
		cpu = processorTime() - cpu
		_ = p.out.Encode(struct{}{}) // if the parent has ended, the next message fails too
	})
	if err != nil {
		return err
	}
	result.CPU = cpu
	if err := p.out.Encode(result); err != nil || !p.await() {
		return err
	}
	return l.leave(ctx)
}

// remote is a load in a process of its own, from the parent's side.
type remote struct{ *child }

func startRemote(ctx context.Context, program Program, c loadConfig, stderr io.Writer) (remote, error) {
	process, err := program.start(roleLoad, c, stderr)
	if err != nil {
		return remote{}, err
	}
	var ready struct{}
	if err := process.receive(ctx, &ready); err != nil {
		_ = process.stop()
		return remote{}, err
	}
	return remote{process}, nil
}

func (r remote) measure(ctx context.Context, _ time.Duration, ended func()) (result loadResult, err error) {
	if err := r.proceed(); err != nil {
		return result, err
	}
	if err := r.receive(ctx, &struct{}{}); err != nil {
		return result, err
	}
	ended()
	return result, r.receive(ctx, &result)
}

func (r remote) leave(context.Context) error {
	if err := r.proceed(); err != nil {
		_ = r.stop()
		return err
	}
	return r.stop()
}
