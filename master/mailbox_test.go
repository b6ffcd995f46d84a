package master

import (
	"errors"
	"testing"
	"time"

	"trainmaster/taskqueue"
)

// A refused batch discards its effects. Otherwise the parameter servers would end sessions that continue.
func TestRefusedBatchPublishesNoEffect(t *testing.T) {
	store := newMemory()
	d := drives(t, store, Config{})
	d.put(&taskqueue.Join{ID: "a"})
	d.round(false)
	box := d.Effects(taskqueue.OnSessionsChanged)
	box.Take()
	store.set(0, errors.New("full"))
	again := d.put(&taskqueue.Join{ID: "a"}) // ends the earlier session
	d.round(false)
	if _, _, done, err := again.Answer(); !done || err == nil {
		t.Fatalf("expected a refused commit, got %v, %v", done, err)
	}
	if got := box.Take(); len(got) > 0 {
		t.Errorf("refused batch: expected no effects, found %+v", got)
	}
	store.set(0, nil)
	d.put(&taskqueue.Join{ID: "a"})
	d.round(false)
	if got := box.Take(); len(got) != 1 {
		t.Errorf("committed batch: expected one effect, found %+v", got)
	}
}

// The leader of an ended job stops without a further event: no event of its term raises an effect.
func TestLeaderOfAnEndedJobStopsFromOutstandingAlone(t *testing.T) {
	for name, tt := range map[string]struct {
		leaves bool
		want   time.Duration
	}{
		"no session": {true, 0},
		"a session":  {false, 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				store := newMemory()
				config := Config{Queue: taskqueue.Options{Passes: 1, SessionTTL: time.Hour}}
				m, stop, ended := leads(t, store, config, nil)
				register(t, m, 1)
				a := joins(t, m, "a")
				if !a.next() || a.next() {
					t.Fatal("expected one task, then the end")
				}
				stop()
				<-ended
				next := store.copied()
				if tt.leaves {
					delete(next.keys, taskqueue.RosterPrefix+"a")
				}
				began := time.Now()
				_, _, ended = starts(t, next, config, nil)
				select {
				case err := <-ended:
					if err != nil {
						t.Errorf("end of the master: got %v", err)
					}
				case <-time.After(time.Minute):
				}
				if waited := time.Since(began); !about(waited, tt.want) {
					t.Errorf("end of the master: after %v, expected %v", waited, tt.want)
				}
			})
		})
	}
}
