package master

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/master/component"
)

// detached runs calls that may not return: their file system hangs, and no context ends a system call.
// One runs at a time; a call that its caller no longer waits for keeps the semaphore until it returns.
type detached struct {
	component.Semaphore
	part string // of the term, for the log of a panic
	log  *logrus.Entry
}

func newDetached(part string, log *logrus.Entry) detached {
	return detached{component.NewSemaphore(), part, log}
}

var errHangs = errors.New("call has not returned")

// do is await for a call without a value.
func (d detached) do(ctx context.Context, afterEnd time.Duration, call func(context.Context) error) error {
	_, err := await(ctx, d, afterEnd, func(ctx context.Context) (struct{}, error) { return struct{}{}, call(ctx) })
	return err
}

// await runs call and waits for it, up to afterEnd after ctx ends.
func await[V any](ctx context.Context, d detached, afterEnd time.Duration, call func(context.Context) (V, error)) (none V, err error) {
	if err := d.Acquire(ctx); err != nil {
		return none, fmt.Errorf("wait for an earlier call: %w", err)
	}
	type result struct {
		value V
		err   error
	}
	done := make(chan result, 1)
	go func() {
		var r result
		r.err = component.Contain(d.log, d.part, func() (err error) {
			r.value, err = call(ctx)
			return err
		})
		d.Release()
		done <- r
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
	}
	select {
	case r := <-done:
		return r.value, r.err
	//guard:detached-time-limit
	case <-time.After(afterEnd):
		return none, fmt.Errorf("%w: %w", errHangs, context.Cause(ctx))
	}
}
