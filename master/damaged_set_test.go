package master

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"trainmaster/master/pscontrol"
	"trainmaster/master/store"
)

// newTerms gives each term another number, as etcd does.
type newTerms struct{ *memory }

func (s newTerms) Lead(context.Context, store.Campaign) (store.Leadership, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.term++
	return numbered{s.memory, s.term}, nil
}

type numbered struct {
	*memory
	revision int64
}

func (n numbered) Revision() int64 { return n.revision }

// A value under /checkpoints/latest that no leader can read ends each term, and the value remains. The error names the key. The terms
// follow after pauses that double up to [samePauseMax]. When the value is repaired, the next term lasts.
func TestDamagedLatestSetEndsTermsWithLongerPauses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		damaged := []byte("written by hand")
		memory := newMemory()
		s := &cutting{store: memory, number: 4, abouts: map[uint64]pscontrol.About{4: {Position: []byte("{}")}}}
		write := func(value []byte) {
			memory.mu.Lock()
			defer memory.mu.Unlock()
			memory.keys[pscontrol.LatestSetKey] = value
		}
		write(damaged)
		m, log, stop, ended := startsLogged(t, newTerms{memory}, controlled(Config{Store: memory, Log: quiet()}, s, pscontrol.Config{CheckpointEvery: pscontrol.Cadence{Time: time.Minute}}))
		time.Sleep(10 * time.Minute) // virtual time
		const message = "term over, campaigning again"
		terms := 0
		for _, e := range log.AllEntries() {
			if e.Message == message {
				terms++
			}
		}
		if terms < 115 || terms > 130 {
			t.Errorf("terms in 10 minutes: expected 115 to 130, found %d", terms)
		}
		if reason, _ := m.notLeading.Load().(string); !strings.Contains(reason, "read "+pscontrol.LatestSetKey+": ") {
			t.Errorf("status: expected the key, found %q", reason)
		}
		if latest, _, _ := memory.Value(t.Context(), pscontrol.LatestSetKey); !bytes.Equal(latest, damaged) || s.taken() != "" {
			t.Errorf("latest set: expected %q unchanged, found %q", damaged, latest)
		}
		write([]byte("set 4"))
		time.Sleep(samePauseMax + time.Second)
		if !m.Leading() {
			t.Error("expected a leader after the repair of the value")
		}
		log.Reset()
		time.Sleep(time.Minute)
		for _, e := range log.AllEntries() {
			if e.Message == message {
				t.Errorf("a term after the repair ended: %v", e.Data)
			}
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
