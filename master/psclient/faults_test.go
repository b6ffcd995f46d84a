package psclient_test

import (
	"context"
	"strings"
	"testing"

	"trainmaster/master/psclient"
	"trainmaster/master/pscontrol"
	pb "trainmaster/proto/trainmaster/v1"
)

// Each server with a value that is not finite, or without a usable checkpoint, is reported, also if another index has
// no server.
func TestFaultsNameServers(t *testing.T) {
	a, b := serve(t), serve(t)
	c := &psclient.Client{Registered: func(context.Context) ([]string, error) { return []string{a.addr, "", b.addr}, nil }}
	t.Cleanup(c.Close)
	if faults, err := c.Faults(within(t)); faults != (pscontrol.Faults{}) || err != nil {
		t.Errorf("without faults: got %+v, %v", faults, err)
	}
	b.described = &pb.DescribeReply{Overflow: "w is +Inf", Unrestored: "set 7 is damaged"}
	want := pscontrol.Faults{Overflow: "parameter server 2: w is +Inf", Unrestored: "parameter server 2: set 7 is damaged"}
	if faults, err := c.Faults(within(t)); faults != want || err != nil {
		t.Errorf("found %+v, %v", faults, err)
	}
	a.stop()
	if faults, err := c.Faults(within(t)); faults != want || err == nil {
		t.Errorf("one server without an answer: got %+v, %v", faults, err)
	}
	if a.whole+b.whole > 0 {
		t.Errorf("expected no request for a placement, found %d", a.whole+b.whole)
	}
}

// An error names the index of its server, also if a lower index has no server.
func TestErrorsNameTheIndexOfTheServer(t *testing.T) {
	gone := serve(t)
	gone.stop()
	c := &psclient.Client{Registered: func(context.Context) ([]string, error) { return []string{"", "", gone.addr}, nil }}
	t.Cleanup(c.Close)
	_, faults := c.Faults(within(t))
	for what, err := range map[string]error{"faults": faults, "retire": c.Retire(within(t), 1, [16]byte{}, 1, nil, nil)} {
		if want := "parameter server 2 (" + gone.addr + ")"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: expected an error about %s, found %v", what, want, err)
		}
	}
}
