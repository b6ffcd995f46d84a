package psclient_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"trainmaster/master/psclient"
	"trainmaster/master/pscontrol"
	pb "trainmaster/proto/trainmaster/v1"
)

// The states have the faults of each server and what its stages need, also if another server has no answer. The placement, which can be
// large, is not read.
func TestStatesNameFaultsWithoutThePlacement(t *testing.T) {
	a, b := serve(t), serve(t)
	c := &psclient.Client{Present: func(context.Context) ([]string, error) { return []string{a.addr, "", b.addr}, nil }}
	t.Cleanup(c.Close)
	a.described = &pb.DescribeReply{State: pb.DescribeReply_STATE_READY, MemoryUsed: 70}
	b.described = &pb.DescribeReply{Overflow: "w is +Inf", Unrestored: "set 7 is damaged", StageNeed: 60, StageRows: 30, StageLimit: 200}
	want := []pscontrol.ServerState{
		{Present: true, Ready: true, Address: a.addr, MemoryUsed: 70}, {}, {Present: true, Address: b.addr, Overflow: "w is +Inf", Unrestored: "set 7 is damaged", StageNeed: 90, StageLimit: 200},
	}
	if states, err := c.States(within(t)); !slices.Equal(states, want) || err != nil {
		t.Errorf("expected %+v, found %+v, %v", want, states, err)
	}
	a.stop()
	want[0] = pscontrol.ServerState{Address: a.addr}
	if states, err := c.States(within(t)); !slices.Equal(states, want) || err == nil {
		t.Errorf("one server without an answer: expected %+v, found %+v, %v", want, states, err)
	}
	if a.whole+b.whole > 0 {
		t.Errorf("expected no request for a placement, found %d", a.whole+b.whole)
	}
}

// An error names the index of its server, also if a lower index has no server.
func TestErrorsNameTheIndexOfTheServer(t *testing.T) {
	gone := serve(t)
	gone.stop()
	addrs := func(context.Context) ([]string, error) { return []string{"", "", gone.addr}, nil }
	c := &psclient.Client{Present: addrs, Registered: addrs}
	t.Cleanup(c.Close)
	_, states := c.States(within(t))
	for what, err := range map[string]error{"states": states, "retire": c.Retire(within(t), 1, [16]byte{}, 1, nil, nil)} {
		if want := "parameter server 2 (" + gone.addr + ")"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: expected an error about %s, found %v", what, want, err)
		}
	}
}
