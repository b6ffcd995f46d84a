package component

import "context"

// Semaphore is a lock that a context can cancel.
type Semaphore struct{ held, released chan struct{} }

// NewSemaphore returns a free semaphore.
func NewSemaphore() Semaphore { return Semaphore{make(chan struct{}, 1), make(chan struct{}, 1)} }

// Acquire waits for the semaphore. It returns the cause if ctx ends.
func (s Semaphore) Acquire(ctx context.Context) error { return s.AcquireOn(ctx, MachineClock{}) }

// AcquireOn is Acquire for a component whose clock may be simulated.
func (s Semaphore) AcquireOn(ctx context.Context, clock Clock) error {
	for ctx.Err() == nil {
		select {
		case s.held <- struct{}{}:
			return nil
		default:
			clock.Wait(ctx, s.released, -1)
		}
	}
	return context.Cause(ctx)
}

// Release frees the semaphore.
func (s Semaphore) Release() {
	<-s.held
	select {
	case s.released <- struct{}{}:
	default: // a waiter is notified
	}
}
