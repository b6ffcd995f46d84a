package etcdstore_test

import (
	"context"
	"errors"
	"testing"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master/store"
	"trainmaster/taskqueue"
)

var (
	_ store.Store      = (*etcdstore.Store)(nil)
	_ store.Leadership = (*etcdstore.Lock)(nil)
	_ store.Servers    = (*etcdstore.Roster)(nil)
)

// Damaged values that every term reads are taskqueue.ErrDamaged, so that a master ends instead of trying again. Other settings belong
// to another job, and a missing answer is neither.
func TestErrorsOfEnsureJobAndParts(t *testing.T) {
	s := etcdtest.Store(t)
	settings := map[string]string{"seed": "1"}
	if err := s.EnsureJob(t.Context(), "default", settings); err != nil {
		t.Fatal(err)
	}
	if err := s.EnsureJob(t.Context(), "default", map[string]string{"seed": "2"}); !errors.Is(err, store.ErrOtherJob) || errors.Is(err, taskqueue.ErrDamaged) {
		t.Errorf("other settings: error %v, expected %v", err, store.ErrOtherJob)
	}
	if _, err := s.Client().Put(t.Context(), s.Prefix()+"/job", "no JSON"); err != nil {
		t.Fatal(err)
	}
	if err := s.EnsureJob(t.Context(), "default", settings); !errors.Is(err, taskqueue.ErrDamaged) || !errors.Is(err, etcdstore.ErrCorrupt) {
		t.Errorf("damaged settings: error %v, expected %v", err, taskqueue.ErrDamaged)
	}
	if _, _, err := s.Parts(t.Context(), "absent", 0, 1); !errors.Is(err, taskqueue.ErrDamaged) || !errors.Is(err, etcdstore.ErrCorrupt) {
		t.Errorf("missing parts: error %v, expected %v", err, taskqueue.ErrDamaged)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.EnsureJob(canceled, "default", settings); err == nil || errors.Is(err, taskqueue.ErrDamaged) {
		t.Errorf("no answer of etcd: error %v, expected another one than %v", err, taskqueue.ErrDamaged)
	}
}
