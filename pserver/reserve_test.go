package pserver

import (
	"testing"

	"trainmaster/pserver/checkpoint"
)

// Whichever way parameters come to a server that keeps checkpoints, it has the memory for copies before the first update has to wait for it.
func TestRoomForCopies(t *testing.T) {
	dir := t.TempDir()
	s, files := retiring(t, dir)
	s.jobEpoch.Store(1)
	reserved := func(what string, s *shard) {
		t.Helper()
		for size, n := range s.holding.Load().sizes() {
			free := s.cuts.free[size]
			if len(free) != n {
				t.Errorf("%s: room for %d blocks of %d elements, expected %d", what, len(free), size, n)
			}
			for _, i := range free {
				if len(i.params) != size {
					t.Errorf("%s: room for %d elements, expected %d", what, len(i.params), size)
				}
			}
		}
	}
	if len(s.cuts.free) > 0 {
		t.Fatal("there is room before there are first parameters")
	}
	if err := files.saveSelf(t.Context(), checkpoint.First); err != nil {
		t.Fatal(err)
	}
	reserved("the first parameters", s)
	s, files = retiring(t, dir)
	reserved("a restart", s)
	set, err := files.store.Stopped(t.Context())
	if err != nil || set == nil {
		t.Fatalf("%v, %v", set, err)
	}
	set.Number = 1
	text, err := set.Encode()
	if err != nil {
		t.Fatal(err)
	}
	s.cuts.free = nil
	if err := files.rewind(t.Context(), 1, 2, text, nil, newDataListener(nil, &Config{}, s, nil)); err != nil {
		t.Fatal(err)
	}
	reserved("rollback to a set", s)
}
