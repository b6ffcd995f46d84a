package bench

import (
	"net"
	"time"
)

// delayProxy stands before an etcd and holds back what clients send, as a network or a slow
// disk would: everything arrives in order, delay later, and much can be under way at once.
type delayProxy struct {
	listener net.Listener
	target   string
	delay    time.Duration
}

func listenDelayed(target string, delay time.Duration) (*delayProxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return &delayProxy{listener: l, target: target, delay: delay}, nil
}

func (p *delayProxy) addr() string { return p.listener.Addr().String() }

// serve passes connections on until the listener closes.
func (p *delayProxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		go pass(server, client, p.delay)
		go pass(client, server, 0)
	}
}

// parcel is bytes that are due later.
type parcel struct {
	due   time.Time
	bytes []byte
}

// pass copies one direction until either end closes, then closes both.
func pass(to, from net.Conn, delay time.Duration) {
	parcels := make(chan parcel, 1024)
	go func() {
		defer close(parcels)
		for {
			buf := make([]byte, 32<<10)
			n, err := from.Read(buf)
			if err != nil {
				return
			}
			parcels <- parcel{time.Now().Add(delay), buf[:n]}
		}
	}()
	defer func() {
		_ = from.Close() // ends the reader
		_ = to.Close()
		for range parcels { // so that the reader is not stuck
		}
	}()
	for p := range parcels {
		time.Sleep(time.Until(p.due))
		if _, err := to.Write(p.bytes); err != nil {
			return
		}
	}
}
