package params

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/wire"
)

// maxControlMessage bounds the placement table as it comes from a server.
const maxControlMessage = 64 << 20

// sequence numbers the frames of a client.
type sequence struct{ last atomic.Uint64 }

func (s *sequence) next() uint64 { return s.last.Add(1) }

// seenVersion is the newest version that any server has sent: it was committed.
type seenVersion struct{ newest atomic.Uint64 }

func (s *seenVersion) note(version uint32) {
	for {
		old := s.newest.Load()
		if uint64(version) <= old || s.newest.CompareAndSwap(old, uint64(version)) {
			return
		}
	}
}

// call is one operation on the blocks of all shards. src and dst are in the
// order of Client.declared; nil when the operation has none.
type call struct {
	op       wire.Op
	step     uint64
	argument uint32
	version  uint32
	behind   bool // only blocks below version, which an earlier call brought
	resumed  bool // it was done in part before blocks were elsewhere
	src, dst []Tensor
}

// slot is a block of a link's shard.
type slot struct {
	placement.Block
	tensor  int    // index in Client.declared
	pending bool   // not acknowledged yet in the call under way
	version uint32 // that the last call brought
	at      uint32 // the version that the trainer computes with, and its own pushes since

	// The payload that is to be sent.
	dtype  wire.DType
	size   wire.Distance
	sum    wire.Checksum
	narrow []byte // itself, of bfloat16
}

func (s *slot) of(tensors []Tensor) []float32 {
	if tensors == nil {
		return nil
	}
	return tensors[s.tensor].Data[s.Offset : s.Offset+s.Len]
}

// link is the client's side of one shard. It outlives connections and servers.
type link struct {
	client *Client
	index  int
	log    *logrus.Entry
	slots  []slot
	rows   []rowFrame // of the current or last call

	addr    string             // "": to be looked up
	serves  context.Context    // ends when the last addr no longer serves the shard; nil before the first
	release context.CancelFunc // of serves
	stream  *stream
	epoch   uint16 // shard epoch of the last hello, 0: none
	down    bool   // lost and not found again
	crowded bool   // had no room for a stage
	failed  int    // consecutive failures of the server on a request
	control *grpc.ClientConn
	dialed  string // the address that control goes to
}

func newLink(c *Client, index int, addr string) *link {
	l := &link{client: c, index: index, log: c.cfg.Log.WithField("shard", index)}
	l.use(addr)
	return l
}

// use sets the address; "": it is to be looked up.
func (l *link) use(addr string) {
	if l.release != nil {
		l.release()
		l.serves, l.release = nil, nil
	}
	if l.addr = addr; addr != "" {
		l.serves, l.release = l.client.cfg.During(context.Background(), l.index, addr)
	}
}

// bound is a context that ends with ctx, and when the address no longer serves the shard.
func (l *link) bound(ctx context.Context) (context.Context, context.CancelFunc) {
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
func (l *link) replaced() bool { return l.serves != nil && l.serves.Err() != nil }

func (l *link) close() error {
	var errs []error
	if l.stream != nil {
		errs = append(errs, l.stream.close())
		l.stream = nil
	}
	if l.control != nil {
		errs = append(errs, l.control.Close())
		l.control = nil
	}
	l.use("")
	return errors.Join(errs...)
}

// run does a call at this shard. It returns an error only when trying again cannot help.
func (l *link) run(ctx context.Context, call call) error {
	for i := range l.slots {
		if !call.resumed {
			l.slots[i].pending = !call.behind || l.slots[i].version < call.version
		}
	}
	restarted := func() {
		for i := range l.slots {
			l.slots[i].pending = l.slots[i].pending || !call.behind
		}
	}
	return l.retry(ctx, restarted, func(ctx context.Context, again bool) error {
		if again {
			l.sum(call)
		}
		return l.stream.exchangeBlocks(ctx, l, call)
	})
}

// retry repeats an exchange until it succeeds or another attempt cannot help. If the server was restarted during the call, it may
// have lost acknowledged parts. Then retry calls restarted, so that they are sent again under the old step. The server skips
// a step that it has.
func (l *link) retry(ctx context.Context, restarted func(), try func(ctx context.Context, again bool) error) error {
	began := l.epoch
	pause := l.client.cfg.pause()
	for again := false; ; again = true {
		if err := l.connect(ctx); err != nil {
			return err
		}
		if l.epoch != began {
			restarted()
			began = l.epoch
		}
		err := l.try(ctx, try, again)
		if err == nil {
			l.failed = 0
			return nil
		}
		if err := l.classify(ctx, err); err != nil {
			return err
		}
		if err := l.pause(ctx, pause, err); err != nil {
			return err
		}
	}
}

func (l *link) try(ctx context.Context, try func(ctx context.Context, again bool) error, again bool) error {
	ctx, release := l.bound(ctx)
	defer release()
	err := try(ctx, again)
	if _, refused := errors.AsType[*wire.Fault](err); err != nil && !refused && l.replaced() {
		return context.Cause(l.serves)
	}
	return err
}

// sum computes the checksums of a repeated request. They differ from the first ones if the caller changed the gradient during the
// call, which is not allowed. With the old checksums the servers would refuse every repetition.
func (l *link) sum(call call) {
	for i := range l.slots {
		if slot := &l.slots[i]; slot.pending {
			slot.sum = wire.Checksum(0).Add(slot.payload(call))
		}
	}
}

// maxFailures is the number of repetitions of a request that the server failed on.
const maxFailures = 3

// classify decides about an error of an exchange. It returns nil for another attempt, and drops the stream or the address if
// needed.
func (l *link) classify(ctx context.Context, err error) error {
	var fault *wire.Fault
	if errors.Is(err, ErrRewound) {
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
			l.log.WithField("answer", fault.Message).Warn("parameter server has no room for this gradient yet: waiting")
		}
		return nil
	case wire.Wait, wire.BadChecksum, wire.WrongShard, wire.Stopping:
		l.log.WithField("answer", fault.Error()).Debug("parameter server busy, retrying")
		return nil
	case wire.Failed:
		//guard:failed-request-ends
		if l.failed++; l.failed > maxFailures {
			l.failed = 0
			return fmt.Errorf("shard %d: %w: %s", l.index, ErrServerFailed, fault.Message)
		}
		l.log.WithFields(logrus.Fields{"answer": fault.Message, "attempt": l.failed}).Warn("parameter server failed on a request: sending it again")
		return nil
	case wire.Moved:
		return fmt.Errorf("shard %d: %w", l.index, errMoved)
	case wire.Stale:
		return &StaleError{Version: uint64(fault.Version)}
	case wire.Uninitialized:
		return fmt.Errorf("shard %d: %w", l.index, ErrUninitialized)
	case wire.Fenced:
		return fmt.Errorf("shard %d: %w", l.index, ErrFenced)
	}
	return fmt.Errorf("shard %d refused it: %w", l.index, fault)
}

// checkEpoch compares the job epoch of the server with the client's.
func (l *link) checkEpoch(epoch uint32) error {
	switch want := l.client.cfg.JobEpoch; {
	case want == 0 || epoch == want:
		return nil
	case epoch > want:
		return fmt.Errorf("%w: parameter server %d is at job epoch %d, this trainer at %d", ErrRewound, l.index, epoch, want)
	default:
		return fmt.Errorf("parameter server %d is still at job epoch %d, this trainer at %d", l.index, epoch, want)
	}
}

// drop closes the connection and forgets the address.
func (l *link) drop() {
	l.hangUp()
	l.addr = ""
	l.dialed = "" // gRPC's own reconnecting would wait longer and longer
}

// lost logs the loss of the connection once.
func (l *link) lost(err error) {
	if !l.down {
		l.down = true
		l.log.WithError(err).Warn("parameter server lost: looking for it again")
	}
}

// connect makes sure that there is a connection on which hello was answered.
func (l *link) connect(ctx context.Context) error {
	pause := l.client.cfg.pause()
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
func (l *link) pause(ctx context.Context, pause *pauses, err error) error {
	waiting, release := l.bound(ctx)
	defer release()
	//guard:replaced-server-ends-pause
	waited := pause.wait(waiting, err)
	if waited == nil || ctx.Err() != nil {
		return waited
	}
	*pause = pauses{replacedPause, pause.max}
	waited = pause.wait(ctx, nil)
	pause.next = l.client.cfg.RetryMin
	return waited
}

// replacedPause bounds the attempts at a registry that names an address and takes it back.
const replacedPause = 10 * time.Millisecond

// find looks the address up if it is not known.
func (l *link) find(ctx context.Context) error {
	if l.addr != "" {
		return nil
	}
	addrs, err := l.client.cfg.Addrs(ctx)
	if err != nil {
		return fmt.Errorf("find parameter server %d: %w", l.index, err)
	}
	if l.index >= len(addrs) {
		return &shardsError{found: len(addrs), expected: len(l.client.links)}
	}
	l.use(addrs[l.index])
	return nil
}

// open dials and says hello.
func (l *link) open(ctx context.Context) error {
	ctx, release := l.bound(ctx)
	defer release()
	dialer := net.Dialer{
		Timeout:         l.client.cfg.ReplyTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 4},
	}
	nc, err := dialer.DialContext(ctx, "tcp", l.addr)
	if err != nil {
		return err
	}
	tuneLocal(nc)
	s := newStream(nc, l.client.cfg.ReplyTimeout)
	offer, err := s.hello(ctx, l, nil, 0)
	if err != nil {
		nc.Close()
		return err
	}
	if local := l.openLocal(ctx, offer, s.head.Argument > 0); local != nil {
		nc.Close()
		s = local
	}
	if restarted := l.epoch != 0 && s.epoch != l.epoch; restarted {
		l.log.WithFields(logrus.Fields{"addr": l.addr, "epoch": s.epoch}).Warn("parameter server restarted from its checkpoint")
	}
	if l.down {
		l.down = false
		l.log.WithField("addr", l.addr).Info("parameter server found again")
	}
	l.stream, l.epoch = s, s.epoch
	return nil
}

// localBuffer is the size of socket buffers within one machine: little enough
// that data in transit stays in the processor's cache, which saves an eighth
// of the processor time. A network needs what the kernel gives it.
const localBuffer = 128 << 10

func tuneLocal(nc net.Conn) {
	tcp, isTCP := nc.(*net.TCPConn)
	if !isTCP {
		return
	}
	if peer, ok := tcp.RemoteAddr().(*net.TCPAddr); !ok || !peer.IP.IsLoopback() {
		return
	}
	tcp.SetReadBuffer(localBuffer)  //nolint:errcheck // only slower
	tcp.SetWriteBuffer(localBuffer) //nolint:errcheck // only slower
}

// controlClient is the gRPC side of the server at l.addr.
func (l *link) controlClient() (pb.ParameterServerClient, error) {
	if l.control == nil || l.dialed != l.addr {
		if l.control != nil {
			l.control.Close()
		}
		control, err := grpc.NewClient("passthrough:///"+l.addr,
			grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: l.client.cfg.ReplyTimeout}),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxControlMessage), grpc.MaxCallSendMsgSize(maxControlMessage)))
		if err != nil {
			return nil, fmt.Errorf("parameter server %d at %q: %w", l.index, l.addr, err)
		}
		l.control, l.dialed = control, l.addr
	}
	return pb.NewParameterServerClient(l.control), nil
}

// pauses are the waits between attempts: doubling, with jitter.
type pauses struct {
	next, max time.Duration
}

func (c *Config) pause() *pauses { return &pauses{c.RetryMin, c.RetryMax} }

// wait sleeps after err, or returns the cause of the end of ctx. It does not sleep after the answer Wait, since the server
// waited before.
func (p *pauses) wait(ctx context.Context, err error) error {
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
