package link

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"

	"trainmaster/pserver/wire"
)

// F151: a request that the server fails on is repeated 3 times, with a warning each. Then the call fails with the answer.
func TestRequestThatTheServerFailsOnEndsTheCall(t *testing.T) {
	var text bytes.Buffer
	log := logrus.New()
	log.SetOutput(&text)
	l := &Link{Index: 2, log: logrus.NewEntry(log)}
	fault := wire.Faultf(wire.Failed, "push failed at shard 2")
	for attempt := range maxFailures {
		if err := l.classify(t.Context(), fault); err != nil {
			t.Fatalf("attempt %d: %v", attempt, err)
		}
	}
	if n := strings.Count(text.String(), "level=warning"); n != maxFailures {
		t.Errorf("%d warnings, expected %d: %s", n, maxFailures, text.String())
	}
	if err := l.classify(t.Context(), fault); !errors.Is(err, ErrServerFailed) || !strings.Contains(err.Error(), "push failed at shard 2") {
		t.Errorf("attempt %d: %v, expected %v", maxFailures, err, ErrServerFailed)
	}
}
