package master

import (
	"context"
	"time"
)

// OverflowShards are parameter servers that can say whether their parameters are finite.
type OverflowShards interface {
	Shards
	// Overflow names the first value that is not finite, of each server that has one; "" if none has. With an error it is what
	// the servers that answered say.
	Overflow(ctx context.Context) (string, error)
}

const overflowEvery = 5 * time.Second

// watchOverflow notes for the status that parameters overflowed, until ctx ends.
func (m *Master) watchOverflow(ctx context.Context, t *term, shards OverflowShards) error {
	clock := t.committer.time
	for ctx.Err() == nil {
		bounded, cancel := clock.WithTimeout(ctx, overflowEvery)
		text, err := shards.Overflow(bounded)
		cancel()
		if err == nil || text != "" { // else nobody knows better than before
			if before := t.overflow.Swap(&text); text != "" && (before == nil || *before != text) {
				m.log.WithField("value", text).Error("parameters overflowed: no more checkpoints are written")
			}
		}
		clock.Sleep(ctx, overflowEvery)
	}
	return context.Cause(ctx)
}
