// Package link implements the client's side of one shard: it finds the server, connects, repeats a request, and finds the server again.
//
// A Link outlives connections and servers. [Link.Do] repeats an exchange on the data port, and [Call] makes one call on the control
// port. Both end early if the registry names another server for the shard. [IsLayoutStale] reports that another placement may help.
//
// A Link is not safe for concurrent use. Different links are.
package link

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/wire"
	"trainmaster/trainer/params/stream"
)

// Config has the settings that all links of a client share.
type Config struct {
	Addrs  func(ctx context.Context) ([]string, error)
	During func(parent context.Context, index int, addr string) (context.Context, context.CancelFunc)
	Table  func() *placement.Table // the current placement

	JobEpoch           uint32        // 0: any
	Stream             stream.Config // without the shard and its placement
	RetryMin, RetryMax time.Duration
	Log                *logrus.Entry
}

// Link is the client's side of one shard.
type Link struct {
	Index int
	Epoch uint16 // of the shard at the last hello, 0: none

	cfg     *Config
	log     *logrus.Entry
	addr    string             // "": to be looked up
	serves  context.Context    // ends when the last addr no longer serves the shard; nil before the first
	release context.CancelFunc // of serves
	stream  *stream.Stream
	pending []stream.Frame // of the last attempt
	down    bool           // lost and not found again
	crowded bool           // had no room for a stage
	waiting waiting
	failed  int // consecutive failures of the server on a request
	control *grpc.ClientConn
	dialed  string // the address that control goes to
}

// waiting is the wait of a request that a server does not take yet.
type waiting struct {
	since  time.Time // first such answer; zero: none
	logged bool
}

// loggedWait is the wait after the first answer that is logged. A server answers after 5 s.
const loggedWait = 4 * time.Second

// noteWait logs a long wait once. In a synchronous job each step waits for the other trainers, which is not logged.
func (l *Link) noteWait(answer string) {
	w := &l.waiting
	switch {
	case l.cfg.JobEpoch != 0 || w.logged:
	case w.since.IsZero():
		w.since = time.Now()
	case time.Since(w.since) > loggedWait:
		w.logged = true
		l.log.WithField("answer", answer).Warn("parameter server does not take the update yet: waiting")
	}
}

// New returns the link of a shard whose server is at addr; "": to be looked up.
func New(cfg *Config, index int, addr string) *Link {
	l := &Link{cfg: cfg, Index: index, log: cfg.Log.WithField("shard", index)}
	l.use(addr)
	return l
}

// use sets the address; "": it is to be looked up.
func (l *Link) use(addr string) {
	if l.release != nil {
		l.release()
		l.serves, l.release = nil, nil
	}
	if l.addr = addr; addr != "" {
		l.serves, l.release = l.cfg.During(context.Background(), l.Index, addr)
	}
}

// bound is a context that ends with ctx, and when the address no longer serves the shard.
func (l *Link) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	serves := l.serves
	if serves == nil {
		return ctx, func() { cancel(nil) }
	}
	//guard:replaced-server-ends-calls
	stop := context.AfterFunc(serves, func() { cancel(context.Cause(serves)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// replaced reports whether the registry has named another address since this one was looked up.
func (l *Link) replaced() bool { return l.serves != nil && l.serves.Err() != nil }

// Close closes the connections.
func (l *Link) Close() (err error) {
	l.HangUp()
	if l.control != nil {
		err = l.control.Close()
		l.control = nil
	}
	l.use("")
	return err
}

// Do exchanges the frames that are not done, until all are or another attempt cannot help. If the server was restarted during the
// call, it may have lost acknowledged frames. Then Do sends them again under the old step. The server skips a step that it has.
func (l *Link) Do(ctx context.Context, frames []stream.Frame) error {
	began := l.Epoch
	pause := l.cfg.Backoff()
	for again := false; ; again = true {
		if err := l.connect(ctx); err != nil {
			return err
		}
		//guard:restarted-server-receives-all-frames
		if l.Epoch != began {
			for i := range frames {
				frames[i].Done = false
			}
			began = l.Epoch
		}
		l.pending = slices.DeleteFunc(append(l.pending[:0], frames...), func(f stream.Frame) bool { return f.Done })
		for i := range l.pending {
			if f := &l.pending[i]; again {
				// The sum differs from the first sum if the caller changed the gradient during the call, which is not allowed. With
				// the old sum the server would refuse every repetition.
				f.Sum = wire.Checksum(0).Add(f.Payload)
			}
		}
		bound, release := l.bound(ctx)
		err := l.stream.Exchange(bound, l.pending)
		release()
		if err == nil {
			l.failed, l.waiting = 0, waiting{}
			return nil
		}
		if _, refused := errors.AsType[*wire.Fault](err); !refused && l.replaced() {
			err = context.Cause(l.serves)
		}
		if err := l.classify(ctx, err); err != nil {
			return err
		}
		if err := l.pause(ctx, pause, err); err != nil {
			return err
		}
	}
}

// maxFailures is the number of repetitions of a request that the server failed on.
const maxFailures = 3

// classify decides about an error of an exchange. It returns nil for another attempt, and drops the stream or the address if
// needed.
func (l *Link) classify(ctx context.Context, err error) error {
	var fault *wire.Fault
	if errors.Is(err, ErrRolledBack) {
		l.drop()
		return err
	}
	if !errors.As(err, &fault) { // the connection broke
		l.drop()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		l.lost(err)
		return nil
	}
	if fault.Code.Fatal() {
		l.drop()
	}
	switch fault.Code {
	case wire.Resync:
		l.drop()
		return nil
	case wire.Busy:
		if !l.crowded {
			l.crowded = true
			what := "parameter server has no room for this gradient yet: waiting"
			if l.stream == nil {
				what = "parameter server is not ready yet: waiting"
			}
			l.log.WithField("answer", fault.Message).Warn(what)
		}
		return nil
	case wire.Wait:
		l.noteWait(fault.Message)
		return nil
	case wire.BadChecksum, wire.WrongShard, wire.Stopping:
		l.log.WithField("answer", fault.Error()).Debug("parameter server busy, retrying")
		return nil
	case wire.Failed:
		//guard:failed-request-ends
		if l.failed++; l.failed > maxFailures {
			l.failed = 0
			return fmt.Errorf("shard %d: %w: %s", l.Index, ErrServerFailed, fault.Message)
		}
		l.log.WithFields(logrus.Fields{"answer": fault.Message, "attempt": l.failed}).Warn("parameter server failed on a request: sending it again")
		return nil
	case wire.Stale:
		return &StaleError{Version: uint64(fault.Version)}
	case wire.OtherModel:
		return l.otherModel(ctx, fault)
	}
	if err := final[fault.Code]; err != nil {
		return fmt.Errorf("shard %d: %w", l.Index, err)
	}
	return fmt.Errorf("shard %d refused it: %w", l.Index, fault)
}

// otherModel returns the error for a server that refused the placement. After a rollback to the beginning, tables may have another
// key of ids: the digest of a trainer that has not joined again then belongs to the parameters before the rollback.
func (l *Link) otherModel(ctx context.Context, fault *wire.Fault) error {
	refused := fmt.Errorf("shard %d refused it: %w", l.Index, fault)
	want := l.cfg.JobEpoch
	if want == 0 {
		return refused
	}
	reply, err := Call(ctx, l, pb.ParameterServerClient.Describe, &pb.DescribeRequest{Brief: true})
	if err != nil && Again(err) {
		return nil
	}
	if err != nil {
		return err
	}
	//guard:placement-before-rollback
	if at := reply.GetJobEpoch(); at > want {
		return fmt.Errorf("%w: %w: it is at job epoch %d, this trainer at %d", ErrRolledBack, refused, at, want)
	}
	return refused
}

// final has the errors of codes after which another attempt cannot help.
var final = map[wire.Code]error{wire.Moved: ErrMoved, wire.Uninitialized: ErrUninitialized, wire.NoSet: ErrNoSet, wire.Fenced: ErrFenced}

// HangUp closes the data connection; the address stays.
func (l *Link) HangUp() {
	if l.stream != nil {
		l.stream.Close() //nolint:errcheck // it is given up
		l.stream = nil
	}
}

// drop closes the connection and forgets the address.
func (l *Link) drop() {
	l.HangUp()
	l.addr = ""
	l.dialed = "" // gRPC's own reconnecting would wait longer and longer
}

// lost logs the loss of the connection once.
func (l *Link) lost(err error) {
	if !l.down {
		l.down = true
		l.log.WithError(err).Warn("parameter server lost: looking for it again")
	}
}

// connect makes sure that there is a connection on which hello was answered.
func (l *Link) connect(ctx context.Context) error {
	pause := l.cfg.Backoff()
	if l.replaced() {
		l.lost(context.Cause(l.serves))
		l.drop()
	}
	for l.stream == nil {
		if err := l.find(ctx); err != nil {
			return err
		}
		err := l.open(ctx)
		if err == nil {
			return nil
		}
		if err := l.classify(ctx, err); err != nil {
			return err
		}
		if err := l.pause(ctx, pause, err); err != nil {
			return err
		}
	}
	return nil
}

// pause waits before another attempt. The wait ends when the registry changes the server of the shard, so a new server is dialed
// immediately.
func (l *Link) pause(ctx context.Context, pause *Backoff, err error) error {
	waiting, release := l.bound(ctx)
	defer release()
	//guard:replaced-server-ends-pause
	waited := pause.Wait(waiting, err)
	if waited == nil || ctx.Err() != nil {
		return waited
	}
	*pause = Backoff{replacedPause, pause.max}
	waited = pause.Wait(ctx, nil)
	pause.next = l.cfg.RetryMin
	return waited
}

// replacedPause bounds the attempts at a registry that names an address and takes it back.
const replacedPause = 10 * time.Millisecond

// find looks the address up if it is not known.
func (l *Link) find(ctx context.Context) error {
	if l.addr != "" {
		return nil
	}
	addrs, err := l.cfg.Addrs(ctx)
	if err != nil {
		return fmt.Errorf("find parameter server %d: %w", l.Index, err)
	}
	if l.Index >= len(addrs) {
		return &ShardsError{Found: len(addrs), Expected: l.cfg.Table().Shards}
	}
	l.use(addrs[l.Index])
	return nil
}

// open makes a stream on which the server has answered a hello.
func (l *Link) open(ctx context.Context) error {
	ctx, release := l.bound(ctx)
	defer release()
	table, cfg := l.cfg.Table(), l.cfg.Stream
	cfg.Shard, cfg.Digest, cfg.Placement = l.Index, table.Digest(), table.Epoch
	s, err := stream.Dial(ctx, l.addr, cfg, l.log)
	if err != nil {
		return err
	}
	if epoch, want := uint32(s.JobEpoch), l.cfg.JobEpoch; want != 0 && epoch != want {
		s.Close() //nolint:errcheck // it is given up
		err := fmt.Errorf("parameter server %d is at job epoch %d, this trainer at %d", l.Index, epoch, want)
		if epoch > want {
			err = fmt.Errorf("%w: %w", ErrRolledBack, err)
		}
		return err
	}
	if restarted := l.Epoch != 0 && s.Epoch != l.Epoch; restarted {
		l.log.WithFields(logrus.Fields{"addr": l.addr, "epoch": s.Epoch}).Warn("parameter server restarted from its checkpoint")
	}
	if l.down {
		l.down = false
		l.log.WithField("addr", l.addr).Info("parameter server found again")
	}
	l.stream, l.Epoch = s, s.Epoch
	return nil
}

// Backoff is the pause between attempts: doubling, with jitter.
type Backoff struct {
	next, max time.Duration
}

// Backoff starts with the shortest pause.
func (c *Config) Backoff() *Backoff { return &Backoff{c.RetryMin, c.RetryMax} }

// Wait sleeps after err, or returns the cause of the end of ctx. It does not sleep after the answer Wait, since the server
// waited before.
func (p *Backoff) Wait(ctx context.Context, err error) error {
	var fault *wire.Fault
	if errors.As(err, &fault) && fault.Code == wire.Wait {
		return context.Cause(ctx)
	}
	timer := time.NewTimer(p.next/2 + rand.N(p.next/2+1))
	defer timer.Stop()
	p.next = min(2*p.next, p.max)
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
