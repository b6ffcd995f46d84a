package master

import (
	"errors"
	"testing"
	"time"

	"trainmaster/taskqueue"
)

// A refused batch discards its effects: the parameter servers would end sessions that go on.
func TestRefusedBatchPublishesNoEffect(t *testing.T) {
	store := newMemory()
	d := drives(t, store, Config{})
	d.put(&taskqueue.Join{ID: "a"})
	d.round(false)
	box := d.term.committer.subscribe(taskqueue.OnSessionsChanged)
	box.Take()
	store.set(0, errors.New("full"))
	again := d.put(&taskqueue.Join{ID: "a"}) // ends the session before it
	d.round(false)
	if _, _, done, err := again.Answer(); !done || err == nil {
		t.Fatalf("the commit was not refused: %v, %v", done, err)
	}
	if got := box.Take(); len(got) > 0 {
		t.Errorf("a refused batch published %+v", got)
	}
	store.set(0, nil)
	d.put(&taskqueue.Join{ID: "a"})
	d.round(false)
	if got := box.Take(); len(got) != 1 {
		t.Errorf("a committed batch published %+v: expected one effect", got)
	}
}

// The leader of an ended job stops without a further event: in its term nothing raises an effect.
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
					t.Fatal("expected one task, and the end")
				}
				stop()
				<-ended
				next := store.copied()
				if tt.leaves {
					delete(next.keys, taskqueue.RosterPrefix+"a")
				}
				began := time.Now()
				_, _, ended = starts(t, next, config, nil)
				if err := <-ended; err != nil {
					t.Errorf("the master ended with %v", err)
				}
				if waited := time.Since(began); !about(waited, tt.want) {
					t.Errorf("the master ended after %v: expected %v", waited, tt.want)
				}
			})
		})
	}
}
