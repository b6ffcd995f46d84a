package component

import "context"

// Semaphore is a lock that a context can cancel.
type Semaphore chan struct{}

// NewSemaphore returns a free semaphore.
func NewSemaphore() Semaphore { return make(Semaphore, 1) }

// Acquire waits for the semaphore. It returns the cause if ctx ends.
func (s Semaphore) Acquire(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx) // if both cases are ready, select chooses at random, and simulated histories differ
	}
	select {
	case s <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Release frees the semaphore.
func (s Semaphore) Release() { <-s }
