package pserver_test

import (
	"context"
	"net"
	"testing"

	"trainmaster/pserver"
	"trainmaster/trainer/params"
)

// The port of a server that stops is open until its last checkpoint is written and its index is free: a leader takes a port that
// refuses for a process that is gone, and would give the index away meanwhile.
func TestPortStaysOpenUntilTheServerHasStopped(t *testing.T) {
	b := newBook(1)
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
