package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/pserver/sharedmem"
	"trainmaster/pserver/wire"
)

// localPatience is the maximum delay by the data socket before the trainer uses TCP.
const localPatience = 2 * time.Second

// localBuffer is the size of socket buffers within one machine: data in transit stays in the processor's cache, which saves an eighth
// of the processor time. A network needs the buffers of the kernel.
const localBuffer = 128 << 10

// Dial connects to the server at addr and introduces the trainer. It uses the data socket of the server if that is reachable.
func Dial(ctx context.Context, addr string, cfg Config, log *logrus.Entry) (*Stream, error) {
	dialer := net.Dialer{
		Timeout:         cfg.Timeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 4},
	}
	nc, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	if tcp, ok := nc.(*net.TCPConn); ok && tcp.RemoteAddr().(*net.TCPAddr).IP.IsLoopback() {
		tcp.SetReadBuffer(localBuffer)  //nolint:errcheck // only slower
		tcp.SetWriteBuffer(localBuffer) //nolint:errcheck // only slower
	}
	s := newStream(nc, cfg, cfg.Timeout)
	offer, err := s.hello(ctx, nil, 0)
	if err != nil {
		nc.Close()
		return nil, err
	}
	if offer == nil {
		return s, nil
	}
	local, err := dialLocal(ctx, cfg, offer, s.reply.Head.Argument > 0)
	switch log := log.WithField("socket", offer.Path); {
	case errors.Is(err, fs.ErrNotExist):
		log.Debug("parameter server is on another machine: using TCP")
	case err != nil:
		log.WithError(err).Info("no way through the data socket of the parameter server: using TCP")
	default:
		log.WithField("shared_memory", local.memory != nil).Debug("using the data socket of the parameter server")
		nc.Close()
		return local, nil
	}
	return s, nil
}

// dialLocal connects to the same server through the socket that it offers. The file may belong to another server, of another machine or
// an earlier time. Only the server that made the offer accepts the hello. shares reports that the server has memory to share.
func dialLocal(ctx context.Context, cfg Config, offer *wire.Offer, shares bool) (*Stream, error) {
	patience := min(cfg.Timeout, localPatience)
	dialer := net.Dialer{Timeout: patience}
	nc, err := dialer.DialContext(ctx, "unix", offer.Path)
	if err != nil {
		return nil, err
	}
	s := newStream(nc, cfg, patience)
	from := &source{socket: sharedmem.Through(nc)}
	s.reply.r.Reset(from)
	var flags wire.Flags
	if shares {
		flags = wire.Shared
	}
	reached, err := s.hello(ctx, &offer.Server, flags)
	if err == nil && (reached == nil || reached.Server != offer.Server) {
		err = fmt.Errorf("another server answers at %s", offer.Path)
	}
	if from.memory != nil {
		err = cmp.Or(s.mapMemory(from.memory), err)
	}
	if err != nil {
		s.Close() //nolint:errcheck // it is given up
		return nil, err
	}
	s.timeout = cfg.Timeout
	return s, nil
}

// mapMemory maps the memory that came with the reply to a hello.
func (s *Stream) mapMemory(file *os.File) error {
	defer file.Close()
	if s.reply.Head.Flags&wire.Shared == 0 {
		return errors.New("reply has memory without the flag")
	}
	m, err := sharedmem.Map(file, int(s.reply.Head.Argument))
	if err != nil {
		return err
	}
	s.memory = &memory{m, make(chan struct{}, m.Slots())}
	for range m.Slots() {
		s.memory.vacant <- struct{}{}
	}
	return nil
}

// hello introduces the trainer and returns the offer of the server, nil without one. It stores the epochs of the shard. A server
// refuses another identity than meant; flags request more.
func (s *Stream) hello(ctx context.Context, meant *wire.Identity, flags wire.Flags) (*wire.Offer, error) {
	defer s.bound(ctx)()
	payload := s.cfg.Digest[:]
	if meant != nil {
		payload = append(payload, meant[:]...)
	}
	head := wire.Header{
		Op: wire.Hello, Flags: flags, Block: uint64(s.cfg.Ordinal), Argument: uint32(s.cfg.Shard), Placement: s.cfg.Placement,
		Incarnation: s.cfg.Incarnation, Step: wire.JobStep(s.cfg.JobID), Sequence: s.cfg.Sequence.Add(1), Length: uint32(len(payload)),
	}
	raw := &s.headers[0]
	head.Encode(raw)
	wire.Seal(raw, payload)
	s.pieces = append(s.pieces, raw[:], payload)
	if err := s.flush(ctx); err != nil {
		return nil, err
	}
	if err := s.header(ctx, head.Sequence, inFrame); err != nil {
		return nil, err
	}
	s.Epoch, s.placement, s.JobEpoch = s.reply.Head.ShardEpoch, s.reply.Head.Placement, s.reply.Head.JobEpoch
	text, err := s.reply.text(wire.MaxOffer)
	if err != nil || len(text) == 0 {
		return nil, err
	}
	offer, err := wire.ParseOffer(text)
	if err != nil {
		return nil, fmt.Errorf("%v reply: %w", wire.Hello, err)
	}
	return &offer, nil
}
