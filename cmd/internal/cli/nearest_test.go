package cli

import (
	"testing"
)

func TestNearest(t *testing.T) {
	names := []string{"endpoints", "listen", "lease-ttl", "log-level"}
	tests := map[string]string{"endpoint": "endpoints", "listne": "listen", "leasettl": "lease-ttl", "zebra": "", "": ""}
	for name, want := range tests {
		if got := nearest(name, names); got != want {
			t.Errorf("nearest to %q is %q, want %q", name, got, want)
		}
	}
}
