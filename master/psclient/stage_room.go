package psclient

import (
	"context"
	"fmt"

	"trainmaster/master/pscontrol"
)

// CheckStageRoom implements [pscontrol.Servers]. Rows of tables count as the most that one trainer has staged so far: a
// scale spreads them with the slots.
func (c *Client) CheckStageRoom(ctx context.Context, trainers, servers int) error {
	addrs, err := c.whole(ctx)
	if err != nil {
		return nil //nolint:nilerr // servers that are not there are named elsewhere
	}
	replies, err := c.brief(ctx, addrs)
	if err != nil {
		return err
	}
	var all uint64
	limit := replies[0].GetStageLimit()
	for i, r := range replies {
		if r.GetStageLimit() == 0 {
			return nil // without parameters, or asynchronous
		}
		each := r.GetStageNeed() + r.GetStageRows() //guard:stage-room-of-rows
		if servers == 0 && uint64(trainers)*each > r.GetStageLimit() {
			return fmt.Errorf("%w: parameter server %d: expected at most %d bytes (--stage-bytes), found %d trainers with %d bytes each: start the servers with a greater --stage-bytes, or add servers with master scale",
				pscontrol.ErrStageRoom, i, r.GetStageLimit(), trainers, each)
		}
		all, limit = all+each, min(limit, r.GetStageLimit())
	}
	//guard:stage-room-before-scale
	if servers == 0 {
		return nil
	}
	if each := (all + uint64(servers) - 1) / uint64(servers); uint64(trainers)*each > limit {
		return fmt.Errorf("%w: on %d parameter servers: expected at most %d bytes (--stage-bytes), found %d trainers with %d bytes each: start the servers with a greater --stage-bytes first",
			pscontrol.ErrStageRoom, servers, limit, trainers, each)
	}
	return nil
}
