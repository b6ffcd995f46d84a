package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"testing"
	"time"

	"trainmaster/master/netrpc/wire"
)

// Pauses double up to a limit, and are random in the upper half of their range.
func TestBackoff(t *testing.T) {
	for n, want := range []time.Duration{20, 40, 80, 160, 320, 640, 1280, 2000, 2000, 2000} {
		want *= time.Millisecond
		if least, half, most := Backoff(n, 0), Backoff(n, 0.5), Backoff(n, 1); least != want/2 || half != want*3/4 || most != want {
			t.Errorf("attempt %d: %v, %v, %v; want %v, %v, %v", n, least, half, most, want/2, want*3/4, want)
		}
	}
	if got := Backoff(1<<40, 1); got != pauseMost {
		t.Errorf("after many attempts: got %v", got)
	}
}

// Only an answer of the job itself ends a call. After any other outcome the call is repeated.
func TestJudge(t *testing.T) {
	say := func(kind error) error { return wire.Error(rpc.ServerError(kind.Error() + ": and why")) }
	for _, tt := range []struct {
		err  error
		want Verdict
	}{
		{nil, Answered},
		{say(wire.ErrJobFinished), Answered},
		{say(wire.ErrJobFailed), Answered},
		{say(wire.ErrRejoin), Answered},
		{say(wire.ErrDrained), Answered},
		{say(wire.ErrOtherDataset), Answered},
		{rpc.ServerError("trainer id: expected 1 to 200 characters"), Answered},
		{say(wire.ErrNotLeader), Again},
		{say(wire.ErrNotStored), Again},
		{rpc.ErrShutdown, Again},
		{io.EOF, Again},
		{io.ErrUnexpectedEOF, Again},
		{context.DeadlineExceeded, Again},
		{fmt.Errorf("dial: %w", errors.New("connection refused")), Again},
	} {
		if got := Classify(tt.err); got != tt.want {
			t.Errorf("%v: got %v, want %v", tt.err, got, tt.want)
		}
	}
}
