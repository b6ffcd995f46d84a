package etcdstore_test

import (
	"maps"
	"slices"
	"testing"

	"trainmaster/etcdstore/etcdtest"
)

func TestTogetherReadsOneRevision(t *testing.T) {
	s := etcdtest.Store(t)
	other := etcdtest.Store(t)
	for _, put := range []struct{ key, value string }{
		{"/task_queues", "state"}, {"/task_queues/aside/0/1", "detail"}, {"/trainers/a", "1"}, {"/trainers/b", "2"}, {"/trainersx", "no"}, {"/ring", "no"},
	} {
		if _, err := s.Client().Put(t.Context(), s.Prefix()+put.key, put.value); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := other.Client().Put(t.Context(), other.Prefix()+"/trainers/c", "other"); err != nil {
		t.Fatal(err)
	}
	values, revision, err := s.ReadAll(t.Context(), "/task_queues", "/trainers/", "/task_queues/aside/", "/master/addr")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for key, value := range values {
		found[key] = string(value)
	}
	want := map[string]string{"/task_queues": "state", "/task_queues/aside/0/1": "detail", "/trainers/a": "1", "/trainers/b": "2"}
	if !maps.Equal(found, want) || revision == 0 {
		t.Errorf("found %v at revision %d, want %v", found, revision, want)
	}
}

func TestJobsAreListed(t *testing.T) {
	endpoint := etcdtest.StartProcess(t, 0).Endpoint() // an etcd without jobs of other tests
	first := etcdtest.Open(t, endpoint, "digits")
	names := func(limit int) []string {
		t.Helper()
		list, err := first.Jobs(t.Context(), limit)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	if list := names(10); len(list) != 0 {
		t.Errorf("without a job: expected none, found %v", list)
	}
	for _, job := range []string{"digits", "digits-2", "mnist", "default"} {
		s := etcdtest.Open(t, endpoint, job)
		for _, key := range []string{"/job", "/task_queues", "/zz"} {
			if _, err := s.Client().Put(t.Context(), s.Prefix()+key, "x"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if list, want := names(10), []string{"default", "digits", "digits-2", "mnist"}; !slices.Equal(list, want) {
		t.Errorf("found %v, want %v", list, want)
	}
	if list := names(2); len(list) != 2 {
		t.Errorf("found %v, want two", list)
	}
}
