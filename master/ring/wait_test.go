package ring

import (
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"trainmaster/master/rendezvous"
)

// F355: the master knows why the ring has no generation, and its user must know it too.
func TestLongWaitIsReported(t *testing.T) {
	logger, lines := logtest.NewNullLogger()
	r := New(Config{Log: logrus.NewEntry(logger)})
	began := time.Unix(1_000_000, 0)
	for _, step := range []struct {
		at      time.Duration
		waiting string
		stuck   string
		rest    time.Duration
		logged  int
	}{
		{0, "found 1", "", 30 * time.Second, 0},
		{20 * time.Second, "found 2", "", 10 * time.Second, 0}, // the reason may change
		{30 * time.Second, "found 2", "found 2", -1, 1},
		{40 * time.Second, "found 1", "found 1", -1, 1}, // it is logged once
		{50 * time.Second, "", "", -1, 1},
		{60 * time.Second, "found 1", "", 30 * time.Second, 1},
		{90 * time.Second, "found 1", "found 1", -1, 2},
	} {
		rest := r.noteWait(rendezvous.Decision{Waiting: step.waiting, Rest: -1}, began.Add(step.at))
		if rest != step.rest || r.Stuck() != step.stuck || len(lines.AllEntries()) != step.logged {
			t.Errorf("after %v: found rest %v, reason %q and %d lines, expected %+v", step.at, rest, r.Stuck(), len(lines.AllEntries()), step)
		}
	}
}
