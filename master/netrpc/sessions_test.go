package netrpc_test

import (
	"errors"
	"strings"
	"testing"

	"trainmaster/master"
	"trainmaster/master/netrpc/wire"
	"trainmaster/taskqueue"
)

// A session beyond the limit is refused with the reason, and the client may repeat its request.
func TestSessionBeyondTheLimit(t *testing.T) {
	r := serve(t, 3, master.Config{Queue: taskqueue.Options{MaxSessions: 1}})
	c := dial(t, r.Addr)
	var who wire.JoinReply
	if err := c.Call("RPCServer.Join", wire.JoinRequest{ID: "a"}, &who); err != nil {
		t.Fatal(err)
	}
	join := func() error { return c.Call("RPCServer.Join", wire.JoinRequest{ID: "b"}, new(wire.JoinReply)) }
	for _, err := range []error{join(), dial(t, r.Addr).Call("RPCServer.GetTask", &taskqueue.Task{}, new(taskqueue.Task))} {
		if !errors.Is(wire.Error(err), wire.ErrNotStored) || !strings.Contains(asText(err), "too many sessions: expected at most 1, found 1: ") {
			t.Errorf("got %v", err)
		}
	}
	if err := c.Call("RPCServer.Leave", wire.LeaveRequest{Trainer: who.Trainer}, new(int)); err != nil {
		t.Fatal(err)
	}
	if err := join(); err != nil {
		t.Errorf("after the other trainer left: got %v", err)
	}
}
