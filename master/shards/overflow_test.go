package shards_test

import (
	"context"
	"testing"

	"trainmaster/master/shards"
	pb "trainmaster/proto/trainmaster/v1"
)

// Each server with a value that is not finite is named with it, also when another index is free.
func TestOverflowNamesServers(t *testing.T) {
	a, b := serve(t), serve(t)
	c := &shards.Client{Registered: func(context.Context) ([]string, error) { return []string{a.addr, "", b.addr}, nil }}
	t.Cleanup(c.Close)
	if text, err := c.Overflow(within(t)); text != "" || err != nil {
		t.Errorf("all are finite: %q, %v", text, err)
	}
	b.described = &pb.DescribeReply{Overflow: "w is +Inf"}
	if text, err := c.Overflow(within(t)); text != "parameter server 2: w is +Inf" || err != nil {
		t.Errorf("found %q, %v", text, err)
	}
	a.stop()
	if text, err := c.Overflow(within(t)); text != "parameter server 2: w is +Inf" || err == nil {
		t.Errorf("one server is silent: %q, %v", text, err)
	}
	if a.whole+b.whole > 0 {
		t.Errorf("%d times a server was asked for its placement", a.whole+b.whole)
	}
}
