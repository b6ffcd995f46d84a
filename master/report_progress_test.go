package master

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
)

// A long registration says how far it is, a short one nothing.
func TestNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger, hook := logtest.NewNullLogger()
		progress := nowAndThen(logrus.NewEntry(logger), "indexing the dataset")
		const files, each = 1000, 10 * time.Millisecond
		for done := range files {
			time.Sleep(each)
			progress(done+1, files)
		}
		entries := hook.AllEntries()
		if want := int(files * each / progressEvery); len(entries) != want {
			t.Fatalf("%d lines in %v, expected %d", len(entries), files*each, want)
		}
		for i, e := range entries {
			if done := (i + 1) * int(progressEvery/each); e.Message != "indexing the dataset" || e.Data["done"] != done || e.Data["of"] != files {
				t.Errorf("line %d: %s %v, expected %d of %d", i, e.Message, e.Data, done, files)
			}
		}
	})
}
