package psclient_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"trainmaster/master/psclient"
	"trainmaster/master/pscontrol"
	pb "trainmaster/proto/trainmaster/v1"
)

// The size of the gradients of all trainers is compared with the limit of each server, for the present and a planned
// number of servers.
func TestStageRoomIsCheckedNowAndBeforeAScale(t *testing.T) {
	a, b := serve(t), serve(t)
	a.described, b.described = &pb.DescribeReply{StageNeed: 60, StageLimit: 200}, &pb.DescribeReply{StageNeed: 40, StageLimit: 200}
	c := &psclient.Client{Present: func(context.Context) ([]string, error) { return []string{a.addr, b.addr}, nil }}
	t.Cleanup(c.Close)
	for _, try := range []struct {
		trainers, servers int
		says              string // "": the gradients fit
	}{
		{3, 0, ""},
		{4, 0, "parameter server 0: expected at most 200 bytes (--stage-bytes), found 4 trainers with 60 bytes each"},
		{2, 1, ""},
		{3, 1, "on 1 parameter servers: expected at most 200 bytes (--stage-bytes), found 3 trainers with 100 bytes each"},
		{4, 3, ""},
	} {
		err := c.CheckStageRoom(within(t), try.trainers, try.servers)
		if try.says == "" && err != nil || try.says != "" && (!errors.Is(err, pscontrol.ErrStageRoom) || !strings.Contains(err.Error(), try.says)) {
			t.Errorf("%d trainers, %d servers: %v, expected %q", try.trainers, try.servers, err, try.says)
		}
	}
	if a.whole+b.whole > 0 {
		t.Errorf("expected no request for a placement, found %d", a.whole+b.whole)
	}
	a.described, b.described = &pb.DescribeReply{StageNeed: 60, StageRows: 30, StageLimit: 200}, &pb.DescribeReply{StageNeed: 40, StageRows: 70, StageLimit: 200}
	for _, try := range []struct {
		trainers, servers int
		says              string
	}{
		{1, 0, ""},
		{2, 0, "parameter server 1: expected at most 200 bytes (--stage-bytes), found 2 trainers with 110 bytes each"},
		{1, 1, ""},
		{2, 1, "on 1 parameter servers: expected at most 200 bytes (--stage-bytes), found 2 trainers with 200 bytes each"},
		{2, 2, ""},
		{3, 2, "on 2 parameter servers: expected at most 200 bytes (--stage-bytes), found 3 trainers with 100 bytes each"},
	} {
		err := c.CheckStageRoom(within(t), try.trainers, try.servers)
		if try.says == "" && err != nil || try.says != "" && (!errors.Is(err, pscontrol.ErrStageRoom) || !strings.Contains(err.Error(), try.says)) {
			t.Errorf("with rows: %d trainers, %d servers: %v, expected %q", try.trainers, try.servers, err, try.says)
		}
	}
	a.described = &pb.DescribeReply{} // asynchronous
	if err := c.CheckStageRoom(within(t), 1000, 1); err != nil {
		t.Error(err)
	}
}
