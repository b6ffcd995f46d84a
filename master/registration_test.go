package master

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
)

// A long registration logs its progress. A short registration logs nothing.
func TestRegistrationProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger, hook := logtest.NewNullLogger()
		var r registration
		if at := r.status(); at != (Registration{}) {
			t.Errorf("before the registration: got %+v", at)
		}
		progress := r.step(logrus.NewEntry(logger), indexing)
		const files, each = 1000, 10 * time.Millisecond
		for done := range files {
			time.Sleep(each)
			progress(done+1, files)
			if at := r.status(); at != (Registration{indexing, done + 1, files}) {
				t.Errorf("after %d: %+v", done+1, at)
			}
		}
		r.end()
		if at := r.status(); at != (Registration{}) {
			t.Errorf("after the registration: got %+v", at)
		}
		entries := hook.AllEntries()
		if want := int(files * each / registrationEvery); len(entries) != want {
			t.Fatalf("%d lines in %v, expected %d", len(entries), files*each, want)
		}
		for i, e := range entries {
			if done := (i + 1) * int(registrationEvery/each); e.Message != indexing || e.Data["done"] != done || e.Data["of"] != files {
				t.Errorf("line %d: %s %v, expected %d of %d", i, e.Message, e.Data, done, files)
			}
		}
	})
}
