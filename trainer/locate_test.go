package trainer_test

import (
	"context"
	"errors"
	"io"
	"testing"

	"trainmaster/trainer"
)

// Calls that wait for a leader end with the final end of leadership. A later leader is found again.
func TestLocatorReportsEndOfLeadership(t *testing.T) {
	f := trainer.NewFollow()
	heard := make(chan error)
	go func() {
		_, _, err := f.Leader(t.Context())
		heard <- err
	}()
	f.End(io.EOF)
	if err := <-heard; !errors.Is(err, io.EOF) {
		t.Errorf("waiting call: got error %v", err)
	}
	if _, err := trainer.Join(t.Context(), trainer.Config{ID: "late", Locate: f}); !errors.Is(err, io.EOF) {
		t.Errorf("join: got error %v", err)
	}
	f.Set("10.0.0.7:8080", 12)
	if addr, moved, err := f.Leader(t.Context()); addr != "10.0.0.7:8080" || moved == nil || err != nil {
		t.Errorf("found %q, %v", addr, err)
	}
	f.Set("", 0)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := f.Leader(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("without a leader: got error %v", err)
	}
}
