package etcdstore

import (
	"context"
	"math/rand/v2"
	"time"
)

// backoff yields pauses that double from least to most, each drawn from [half, whole], so that many waiters do not retry at
// the same time.
type backoff struct {
	least, most time.Duration
	last        time.Duration
}

func (b *backoff) next() time.Duration {
	b.last = min(max(2*b.last, b.least), b.most)
	return b.last/2 + rand.N(b.last/2+1)
}

func (b *backoff) reset() { b.last = 0 }

// sleep waits for d, or less when ctx ends; then it returns its error.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
