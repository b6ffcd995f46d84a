package params

import (
	"context"

	"trainmaster/pserver/wire"
)

// FailEachExchange has the first parameter server fail on each exchange of a call. It returns how many there were.
func FailEachExchange(ctx context.Context, c *Client) (exchanges int, err error) {
	err = c.links[0].retry(ctx, func() {}, func(context.Context, bool) error {
		exchanges++
		return wire.Faultf(wire.Failed, "push failed at shard 0")
	})
	return exchanges, err
}
