package pserver_test

import (
	"context"
	"net"
	"testing"

	"trainmaster/pserver"
	"trainmaster/trainer/params"
)

// The port of a stopping server is open until its last checkpoint is written and its index is free. For the leader, a refused
// connection means that the process is gone, and the leader would free the index.
func TestPortStaysOpenUntilTheServerHasStopped(t *testing.T) {
	b := newBook(1)
	newSetTaker(t, b)
	p := b.place(0)
	s, err := pserver.New(pserver.Config{Registry: p, Log: quiet(), CheckpointDir: t.TempDir()})
	must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	writing := 0
	s.OnStep(func(string) {
		if ctx.Err() == nil {
			return
		}
		writing++
		conn, err := net.Dial("tcp", s.Addr())
		if err != nil {
			t.Errorf("while the last checkpoint is written: %v", err)
			return
		}
		conn.Close()
	})
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	c := connect(t, b, params.Config{Mode: params.Async})
	mustInit(t, c, little())
	_, err = c.Push(within(t), 1, 1, little())
	must(t, err)
	stop()
	must(t, <-done)
	if writing == 0 {
		t.Error("no checkpoint was written at the stop")
	}
	if conn, err := net.Dial("tcp", s.Addr()); err == nil {
		conn.Close()
		t.Error("the port of a server that has stopped is open")
	}
}
