package detector_test

import (
	"testing"
	"time"

	"trainmaster/master/election/detector"
)

func TestRedialBacksOffAfterEveryAttemptWithoutHeartbeat(t *testing.T) {
	var r detector.Redial
	if wait := r.Ended(5); wait != 0 {
		t.Errorf("after heartbeats: expected no pause, found %v", wait)
	}
	total := time.Duration(0)
	for i := range 100 {
		wait := r.Ended(0)
		if wait <= 0 || wait > detector.Interval {
			t.Fatalf("attempt %d without a heartbeat: a pause of %v", i, wait)
		}
		total += wait
	}
	if total < 90*detector.Interval {
		t.Errorf("100 attempts without a heartbeat within %v", total)
	}
	if wait := r.Ended(1); wait != 0 {
		t.Errorf("after a heartbeat: %v, expected no pause", wait)
	}
}

func TestRedialReportsGoneMaster(t *testing.T) {
	var r detector.Redial
	if wait, gone := r.NotConnected(true); gone || wait != detector.Interval {
		t.Errorf("port that was never open: pause %v, gone %v", wait, gone)
	}
	r.Ended(0)
	if wait, gone := r.NotConnected(false); gone || wait <= 0 {
		t.Errorf("no answer from a port that was open: pause %v, gone %v", wait, gone)
	}
	if wait, gone := r.NotConnected(true); !gone || wait != detector.Interval {
		t.Errorf("refusal of a port that was open: pause %v, gone %v", wait, gone)
	}
}
