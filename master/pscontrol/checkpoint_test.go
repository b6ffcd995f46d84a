package pscontrol

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// After failed attempts that leave files on the disk, the pauses grow. After attempts that leave no files, and after
// a success, the next attempt follows soon.
func TestBackoffOfFailedCheckpoints(t *testing.T) {
	now := time.Unix(0, 0)
	var p backoff
	if p.again.After(now) {
		t.Error("first attempt: expected no pause")
	}
	full := errors.New("disk full")
	for i, want := range []struct {
		err   error
		pause time.Duration
	}{
		{full, time.Second}, {full, 2 * time.Second}, {full, 4 * time.Second}, {ErrNothingToCut, time.Second}, {full, 2 * time.Second},
		{fmt.Errorf("cut 3: %w", errNotFlushed), time.Second},
	} {
		p.failed(now, want.err)
		if p.again != now.Add(want.pause) {
			t.Errorf("after failure %d the pause is %v, expected %v", i+1, p.pause, want.pause)
		}
	}
	for range 20 {
		p.failed(now, full)
	}
	if p.pause != checkpointPause {
		t.Errorf("the longest pause is %v, expected %v", p.pause, checkpointPause)
	}
}
