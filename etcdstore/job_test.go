package etcdstore_test

import (
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master/store"
)

func TestOtherSettingsAreRefused(t *testing.T) { // F20
	s := etcdtest.Store(t)
	first := map[string]string{"pass-mode": "barrier", "seed": "1"}
	for range 2 {
		if err := s.EnsureJob(t.Context(), "j", first); err != nil {
			t.Fatal(err)
		}
	}
	value, _, err := s.Value(t.Context(), "/job")
	if err != nil {
		t.Fatal(err)
	}
	var stored etcdstore.Job
	if err := json.Unmarshal(value, &stored); err != nil || stored.Name != "j" || stored.Settings["seed"] != "1" || len(stored.Digest) != 64 {
		t.Errorf("/job is %s (%v)", value, err)
	}
	cases := []struct {
		name     string
		settings map[string]string
		says     string // "" is welcome
	}{
		{"j", map[string]string{"pass-mode": "barrier", "seed": "2"}, `seed was "1" at the beginning and is "2" here`},
		{"j", map[string]string{"pass-mode": "rolling", "seed": "2"}, `pass-mode was "barrier" at the beginning and is "rolling" here, seed was`},
		{"k", first, `job is "j" there and "k" here`},
		{"j", map[string]string{"pass-mode": "barrier", "seed": "1", "newer": "x"}, ""},
		{"j", map[string]string{"pass-mode": "barrier"}, ""},
	}
	for _, c := range cases {
		err := s.EnsureJob(t.Context(), c.name, c.settings)
		switch {
		case c.says == "" && err != nil:
			t.Errorf("%v: %v", c.settings, err)
		case c.says != "" && (!errors.Is(err, store.ErrOtherJob) || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%v: %v, want %q", c.settings, err, c.says)
		}
	}
	if now, _, err := s.Value(t.Context(), "/job"); err != nil || string(now) != string(value) {
		t.Errorf("/job became %s, %v", now, err)
	}
}

func TestFirstSettingsWin(t *testing.T) {
	job := etcdtest.NewJob(t)
	var wg sync.WaitGroup
	var won atomic.Int32
	for _, seed := range []string{"1", "2", "3", "4"} {
		s := etcdtest.Open(t, etcdtest.Endpoint(t), job)
		wg.Go(func() {
			switch err := s.EnsureJob(t.Context(), "j", map[string]string{"seed": seed}); {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, store.ErrOtherJob):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("expected one master to set the settings, found %d", won.Load())
	}
}

func TestDamagedJobIsRefused(t *testing.T) {
	for _, damage := range []string{
		"not JSON",
		`{"name":"j","settings":{"seed":"2"},"digest":"00"}`, // edited manually
	} {
		s := etcdtest.Store(t)
		if _, err := s.Client().Put(t.Context(), s.Prefix()+"/job", damage); err != nil {
			t.Fatal(err)
		}
		err := s.EnsureJob(t.Context(), "j", map[string]string{"seed": "2"})
		if err == nil || !strings.Contains(err.Error(), "another --job") {
			t.Errorf("%s: %v", damage, err)
		}
	}
}

// A stored job of a mode that was removed is refused by name: no settings of a master fit it.
func TestEnsureJobNamesRemovedModes(t *testing.T) {
	for name, c := range map[string]struct{ update, commit, says string }{
		"synchronous without rollbacks": {"sync", "finish", "a synchronous job without rollbacks"},
		"asynchronous with rollbacks":   {"async", "cuts", "an asynchronous job with rollbacks"},
	} {
		t.Run(name, func(t *testing.T) {
			s := etcdtest.Store(t)
			if err := s.EnsureJob(t.Context(), "j", map[string]string{"update-mode": c.update, "commit-mode": c.commit}); err != nil {
				t.Fatal(err)
			}
			err := s.EnsureJob(t.Context(), "j", map[string]string{"update-mode": c.update, "commit-mode": "other"})
			if !errors.Is(err, store.ErrOtherJob) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v: expected %v, with %q", err, store.ErrOtherJob, c.says)
			}
		})
	}
}
