package master

import (
	"context"
	"errors"
	"testing"
)

func TestTurnIsNotTakenAfterContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("the term has ended")
	cancel(cause)
	free := newTurn()
	for range 100 { // a select of two ready cases chooses at random
		if err := free.take(ctx); !errors.Is(err, cause) {
			t.Fatalf("take after the context ended: expected %q, found %v", cause, err)
		}
	}
}
