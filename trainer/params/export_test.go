package params

import (
	"context"

	"trainmaster/pserver/wire"
	"trainmaster/trainer/params/stream"
)

// FailEachExchange has the first parameter server fail on each exchange of a call. It returns how many there were.
func FailEachExchange(ctx context.Context, c *Client) (exchanges int, err error) {
	s := c.shards[0]
	b := &c.blocks[s.blocks[0]]
	frame := stream.Frame{
		Head: wire.Header{Op: wire.Pull, Block: b.ID},
		Fill: func(*stream.Frame, []byte) (none stream.Payload) { return none },
		Take: func(_ *stream.Frame, r *stream.Reply) error {
			exchanges++
			if err := r.Floats(make([]float32, b.Len), wire.Float32); err != nil {
				return err
			}
			return wire.Faultf(wire.Failed, "push failed at shard 0")
		},
	}
	err = s.Do(ctx, func() {}, func(bool) []stream.Frame { return []stream.Frame{frame} })
	return exchanges, err
}
