package migrate

import (
	"testing"
	"time"

	"trainmaster/pserver/model"
	core "trainmaster/pserver/shard"
)

// begin initializes a shard with parameters of zero, as one trainer does.
func begin(t testing.TB, s *core.Shard, m *model.Model) *core.View {
	t.Helper()
	if o, _, _, err := s.Claim(m, 0, 1, time.Now()); o != core.OutcomeClaimed || err != nil {
		t.Fatal(o, err)
	}
	h := s.View()
	for _, b := range h.Blocks() {
		if refused := s.Put(h, b, 1, core.Values{Floats: make([]float32, b.Len)}, time.Now()); refused != nil {
			t.Fatal(refused)
		}
	}
	if err := s.Finish(1, false); err != nil {
		t.Fatal(err)
	}
	return h
}

// join is the trainer of a hello.
func join(t testing.TB, s *core.Shard, ordinal uint32, incarnation uint64) (*core.Trainer, *core.Refusal) {
	t.Helper()
	who, _, refused := s.Join(ordinal, incarnation, s.View().Model().Digest, s.View().Model().Placement.Epoch)
	return who, refused
}
