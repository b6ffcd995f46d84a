package main

import (
	"errors"
	"testing"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"trainmaster/cmd/internal/cli"
	"trainmaster/master"
)

// F324: a pod of a master whose last requests failed is followed by another pod, also if the job has failed. All requests are made.
func TestUnsettledEndOfAJobIsRepeatedByTheNextPod(t *testing.T) {
	quiet, _ := logtest.NewNullLogger()
	log := logrus.NewEntry(quiet)
	for _, outcome := range []error{nil, master.ErrJobFailed} {
		made := 0
		good := endStep{"", func() error { made++; return nil }}
		bad := endStep{"not published", func() error { made++; return errors.New("the API does not answer") }}
		if err := settled(outcome, true, log, []endStep{good, good}); err != outcome || made != 2 {
			t.Errorf("%v: found %v after %d requests", outcome, err, made)
		}
		made = 0
		err := settled(outcome, true, log, []endStep{bad, good})
		if cli.ExitCode(err) != cli.ExitStore || cli.PodCode(cli.ExitCode(err), outcome != nil, false) != cli.ExitPodAway || made != 2 {
			t.Errorf("%v: expected exit code 3 after 2 requests, found %v after %d", outcome, err, made)
		}
		if err := settled(outcome, false, log, []endStep{bad}); err != outcome {
			t.Errorf("%v: outside of a pod: found %v", outcome, err)
		}
	}
}
