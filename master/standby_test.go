package master

import (
	"testing"

	"trainmaster/master/decide"
)

// A key with our address is one that an earlier start left behind, and nobody is there to miss it, unless it is our own.
func TestPredecessor(t *testing.T) {
	const here, there = "10.0.0.1:8080", "10.0.0.2:8080"
	for name, tt := range map[string]struct {
		own     string
		suspect Suspect
		want    decide.Verdict
	}{
		"an earlier start":              {"2", Suspect{Key: "/master/lock/1", Address: here, Lease: "1"}, decide.Dead},
		"our own key":                   {"2", Suspect{Key: "/master/lock/2", Address: here, Lease: "2"}, decide.Alive},
		"before we know our own key":    {"", Suspect{Key: "/master/lock/2", Address: here, Lease: "2"}, decide.Alive},
		"a master at another address":   {"2", Suspect{Key: "/master/lock/1", Address: there, Lease: "1"}, decide.Alive},
		"nobody is in the queue at all": {"2", Suspect{}, decide.Alive},
	} {
		s := &standby{config: Config{Advertise: here}, own: func() string { return tt.own }}
		if got := s.predecessor(tt.suspect); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}
