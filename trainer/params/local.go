package params

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"

	"trainmaster/pserver/sharedmem"
	"trainmaster/pserver/wire"
)

// localPatience is the maximum delay by the data socket before the trainer uses TCP.
const localPatience = 2 * time.Second

// openLocal connects to the same server through the socket that it offers. It returns nil if the socket is unreachable; TCP serves
// as well. The file may belong to another server, of another machine or an earlier time. Only the server that made the offer
// accepts the hello. shares reports that the server has memory to share.
func (l *link) openLocal(ctx context.Context, offer *wire.Offer, shares bool) *stream {
	if offer == nil {
		return nil
	}
	log := l.log.WithField("socket", offer.Path)
	s, err := l.dialLocal(ctx, offer, shares)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		log.Debug("parameter server is on another machine: using TCP")
	case err != nil:
		log.WithError(err).Info("no way through the data socket of the parameter server: using TCP")
	default:
		log.WithField("shared_memory", s.memory != nil).Debug("using the data socket of the parameter server")
	}
	return s
}

func (l *link) dialLocal(ctx context.Context, offer *wire.Offer, shares bool) (*stream, error) {
	patience := min(l.client.cfg.ReplyTimeout, localPatience)
	dialer := net.Dialer{Timeout: patience}
	nc, err := dialer.DialContext(ctx, "unix", offer.Path)
	if err != nil {
		return nil, err
	}
	s := newStream(nc, patience)
	from := &source{socket: sharedmem.Through(nc)}
	s.r.Reset(from)
	var flags wire.Flags
	if shares {
		flags = wire.Shared
	}
	reached, err := s.hello(ctx, l, &offer.Server, flags)
	if err == nil && (reached == nil || reached.Server != offer.Server) {
		err = fmt.Errorf("another server answers at %s", offer.Path)
	}
	if from.memory != nil {
		err = cmp.Or(s.take(from.memory), err)
	}
	if err != nil {
		s.close() //nolint:errcheck // it is given up
		return nil, err
	}
	s.timeout = l.client.cfg.ReplyTimeout
	return s, nil
}

// take shares the memory that came with the reply to a hello.
func (s *stream) take(file *os.File) error {
	defer file.Close()
	if s.head.Flags&wire.Shared == 0 {
		return errors.New("reply has memory without the flag")
	}
	m, err := sharedmem.Map(file, int(s.head.Argument))
	if err != nil {
		return err
	}
	s.memory = newMemory(m)
	return nil
}
