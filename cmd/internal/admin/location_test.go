package admin

import (
	"testing"

	"trainmaster/etcdstore"
)

// A location without a directory, as the progress of `master run` has it, is named by its endpoints.
func TestStartCommandWithoutFolder(t *testing.T) {
	p := Location{Etcd: &etcdstore.Config{Endpoints: []string{"127.0.0.1:2379"}}}
	if got, want := p.startCommand(), "master --endpoints 127.0.0.1:2379"; got != want {
		t.Errorf("found %q, expected %q", got, want)
	}
}
