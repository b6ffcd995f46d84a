package pserver

import (
	"testing"
	"time"

	"trainmaster/pserver/model"
	core "trainmaster/pserver/shard"
)

// begin initializes a shard with parameters of zero, as one trainer does.
func begin(t testing.TB, s *shard, m *model.Model) *holding {
	t.Helper()
	if o, _, err := s.requestClaim(m, 0, 1, time.Now()); o != outcomeClaimed || err != nil {
		t.Fatal(o, err)
	}
	h := s.View()
	for _, b := range h.Blocks() {
		if refused := s.put(h, b, 1, core.Values{Floats: make([]float32, b.Len)}, time.Now()); refused != nil {
			t.Fatal(refused)
		}
	}
	if err := s.finish(1, func() {}); err != nil {
		t.Fatal(err)
	}
	return h
}

// join is the trainer of a hello.
func join(t testing.TB, s *shard, ordinal uint32, incarnation uint64) (*trainer, *core.Refusal) {
	t.Helper()
	who, _, refused := s.join(ordinal, incarnation, s.View().Model().Digest, s.View().Model().Placement.Epoch)
	return who, refused
}

// versionOf is the version of a block.
func versionOf(b *block) (version uint64) {
	b.Inspect(nil, func(_ []float32, v, _ uint64) { version = v })
	return version
}
