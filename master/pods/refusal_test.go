package pods

import (
	"errors"
	"slices"
	"testing"
	"time"
)

// F278: a refused request is repeated with pauses of 1 s to 30 s.
func TestPausesOfARefusedRequest(t *testing.T) {
	var r refusal
	var pauses []time.Duration
	now := time.Unix(1000, 0)
	for range 7 {
		r = r.again(errors.New("exceeded quota"), now)
		pauses = append(pauses, r.until.Sub(now)/time.Second)
	}
	if want := []time.Duration{1, 2, 4, 8, 16, 30, 30}; !slices.Equal(pauses, want) {
		t.Errorf("expected %v seconds, found %v", want, pauses)
	}
}
