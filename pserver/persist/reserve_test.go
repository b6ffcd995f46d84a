package persist

import (
	"testing"

	core "trainmaster/pserver/shard"
)

// Whichever way parameters come to a server that keeps checkpoints, it has the memory for copies before the first update has to wait for it.
func TestRoomForCopies(t *testing.T) {
	dir := t.TempDir()
	s, files := retiring(t, dir)
	reserved := func(what string, s *core.Shard) {
		t.Helper()
		if !s.View().HasCutRoom() {
			t.Errorf("%s: a block has no memory for a copy", what)
		}
	}
	if s.View().HasCutRoom() {
		t.Fatal("there is room before there are first parameters")
	}
	files.Begun()
	reserved("the first parameters", s)
	text := saveSet(t, files)
	s, files = retiring(t, dir)
	reserved("a restart", s)
	store := files.store
	s, files = retiring(t, t.TempDir())
	files.store = store
	if err := files.Rewind(t.Context(), 1, 2, text, nil, func() func() { return func() {} }); err != nil {
		t.Fatal(err)
	}
	reserved("rollback to a set", s)
}
