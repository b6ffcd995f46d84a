package component_test

import (
	"context"
	"errors"
	"testing"

	"trainmaster/master/component"
)

func TestSemaphoreIsNotAcquiredAfterContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("the term has ended")
	cancel(cause)
	free := component.NewSemaphore()
	for range 100 { // a select of two ready cases chooses at random
		if err := free.Acquire(ctx); !errors.Is(err, cause) {
			t.Fatalf("acquire after the context ended: expected %q, found %v", cause, err)
		}
	}
}
