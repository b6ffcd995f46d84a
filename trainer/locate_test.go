package trainer_test

import (
	"context"
	"errors"
	"io"
	"testing"

	"trainmaster/trainer"
)

// Who waits for a leader hears that there will be none, until there is one after all.
func TestFollowToTheEnd(t *testing.T) {
	f := trainer.NewFollow()
	heard := make(chan error)
	go func() {
		_, _, err := f.Leader(t.Context())
		heard <- err
	}()
	f.End(io.EOF)
	if err := <-heard; !errors.Is(err, io.EOF) {
		t.Errorf("who waited heard %v", err)
	}
	if _, err := trainer.Join(t.Context(), trainer.Config{ID: "late", Locate: f}); !errors.Is(err, io.EOF) {
		t.Errorf("who joins hears %v", err)
	}
	f.Set("10.0.0.7:8080", 12)
	if addr, moved, err := f.Leader(t.Context()); addr != "10.0.0.7:8080" || moved == nil || err != nil {
		t.Errorf("found %q, %v", addr, err)
	}
	f.Set("", 0)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := f.Leader(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("nobody leads for a while: %v", err)
	}
}
