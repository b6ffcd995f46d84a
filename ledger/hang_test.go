package ledger_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"trainmaster/ledger"
)

// memory implements the store and the lock of the leader without etcd, for tests in virtual time.
type memory struct {
	mu       sync.Mutex
	entries  []ledger.Entry
	head     []byte
	revision int64
}

func (m *memory) LedgerEntries(_ context.Context, first, last uint64, limit int) (page []ledger.Entry, head []byte, revision int64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.entries {
		if first <= e.Commit && e.Commit <= last && len(page) < limit {
			page = append(page, e)
		}
	}
	return page, m.head, m.revision, nil
}

func (m *memory) Value(_ context.Context, key string) ([]byte, int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if key != ledger.HeadKey {
		return nil, 0, nil
	}
	return m.head, m.revision, nil
}

func (m *memory) ReplaceFenced(_ context.Context, key string, expectRevision int64, value []byte) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if key != ledger.HeadKey || expectRevision != m.revision {
		return 0, fmt.Errorf("%s at revision %d: expected %s at revision %d", key, expectRevision, ledger.HeadKey, m.revision)
	}
	m.head, m.revision = bytes.Clone(value), m.revision+1
	return m.revision, nil
}

func (m *memory) DeleteLedgerEntries(_ context.Context, first, last uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var left []ledger.Entry
	for _, e := range m.entries {
		if e.Commit < first || e.Commit > last {
			left = append(left, e)
		}
	}
	m.entries = left
	return nil
}

func (m *memory) Keys(context.Context, string) ([]string, error)  { return nil, errors.ErrUnsupported }
func (m *memory) PutFenced(context.Context, string, []byte) error { return errors.ErrUnsupported }
func (m *memory) DeleteFenced(context.Context, ...string) error   { return errors.ErrUnsupported }
func (m *memory) counts() (entries int)                           { m.mu.Lock(); defer m.mu.Unlock(); return len(m.entries) }

// If the file system hangs during a write, the status shows it after 10 s and until it answers. The log has one line
// at the beginning and one at the end, also if two accesses of one attempt hang.
func TestHungDirectoryShowsInStatusAndLogWhileItHangs(t *testing.T) {
	dir := t.TempDir()
	all, state := written(t, 12, 4)
	if _, err := ledger.Encode(ledger.Header{First: 1, Last: all[0].Commit}, all[:1]); err != nil { // creates the shared compressor outside the synctest bubble
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		store := &memory{entries: all}
		logger, log := logtest.NewNullLogger()
		s := &ledger.Sealer{
			Store: store, Log: logrus.NewEntry(logger),
			Config: ledger.Config{Dir: dir, Every: state.Commit - 1, Keep: ledger.Keep{All: true}},
		}
		answers := make(chan struct{})
		s.OnStep(func(name string) error {
			if name == "file written" { // the id first, then the sealed file
				<-answers
			}
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- s.Run(ctx, store, jobID, func() ledger.Progress { return ledger.Progress{Commit: state.Commit} })
		}()
		defer func() { cancel(); <-ended }()

		wants := func(when string, hangs time.Duration, lines ...string) {
			t.Helper()
			synctest.Wait()
			if got := s.Status(); got.Hangs != hangs || got.Failures != 0 || !strings.HasPrefix(got.Dir, dir) {
				t.Errorf("%s: status %+v, expected a hang of %v in %s", when, got, hangs, dir)
			}
			var found []string
			for _, e := range log.AllEntries() {
				found = append(found, e.Message)
			}
			if strings.Join(found, "\n") != strings.Join(lines, "\n") {
				t.Errorf("%s: log %q, expected %q", when, found, lines)
			}
		}
		const silent, again = "ledger directory does not answer, entries stay in etcd", "ledger directory answers again"
		time.Sleep(9 * time.Second)
		wants("after 9 s", 0)
		time.Sleep(2 * time.Second)
		wants("after 11 s", 11*time.Second, silent)
		time.Sleep(time.Hour)
		wants("after an hour", time.Hour+11*time.Second, silent)
		answers <- struct{}{}
		wants("when the second access begins", 0, silent)
		time.Sleep(time.Minute)
		wants("a minute into the second access", time.Minute, silent)
		if n := store.counts(); n != len(all) {
			t.Errorf("%d entries in etcd during the hang, expected all %d", n, len(all))
		}
		close(answers)
		wants("when the directory answers", 0, silent, again)
		time.Sleep(time.Minute)
		wants("a minute later", 0, silent, again)
		if n := store.counts(); n >= len(all) || s.Status().Sealed == 0 {
			t.Errorf("%d of %d entries in etcd, status %+v: expected most of them sealed", n, len(all), s.Status())
		}
	})
}
