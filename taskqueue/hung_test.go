package taskqueue

import (
	"reflect"
	"slices"
	"testing"
	"time"
)

// F27: a trainer that makes no request after the timeout of its task is stopped at the hard deadline, if it has a service for commands, and
// reported when the stop had no effect. A request ends the wait.
func TestHungTrainerIsStoppedAndReported(t *testing.T) {
	const control = "10.0.0.7:9000"
	for name, c := range map[string]struct {
		control string
		alive   Clock // of a request; 0: none
		want    map[Clock]string
	}{
		"with a port":              {control, 0, map[Clock]string{10_100: "stop", 15_100: "hung"}},
		"without a port":           {"", 0, map[Clock]string{10_100: "hung"}},
		"a request after the stop": {control, 12_000, map[Clock]string{10_100: "stop"}},
		"a request before":         {control, 5_000, nil},
	} {
		t.Run(name, func(t *testing.T) {
			q := New("job", [16]byte{}, 1, Options{FirstTimeout: time.Second, TimeoutMin: time.Second, TimeoutMax: time.Second, SessionTTL: 5 * time.Second})
			q.Apply(1, &Report{Digest: [32]byte{1}, Table: tableOf(t, 3)})
			a := q.Apply(1, &Join{ID: "a", Control: c.control})
			task := q.Apply(1, &Request{Trainer: a.Ordinal, Incarnation: a.Incarnation, Seq: 1, Ack: 1, Want: true})
			q.Ready()
			found := map[Clock]string{}
			for now := Clock(100); now < 30_000; now += 100 {
				if now == c.alive {
					q.Apply(now, &Request{Trainer: a.Ordinal, Incarnation: a.Incarnation, Seq: 2, Ack: 2})
				}
				q.Apply(now, &Heartbeat{Trainer: a.Ordinal, Incarnation: a.Incarnation})
				q.Apply(now, &Tick{})
				for _, e := range readyEffects(q) {
					switch {
					case reflect.DeepEqual(e, StopDue{Trainer: a.Ordinal, ID: "a", Address: control, Stops: []Token{task.Token}}):
						found[now] = "stop"
					case e == Effect(TrainerHung{Trainer: a.Ordinal, ID: "a", Task: task.Token}):
						found[now] = "hung"
					}
				}
			}
			if len(found) != len(c.want) || !reflect.DeepEqual(found, c.want) && len(c.want) > 0 {
				t.Errorf("found %v, expected %v", found, c.want)
			}
		})
	}
}

// A trainer whose process has ended, or that has left or joined again, does not hang.
func TestEndedTrainerDoesNotHang(t *testing.T) {
	for name, end := range map[string]func(q *Queue, a Answer){
		"gone":         func(q *Queue, _ Answer) { q.Apply(3000, &Gone{ID: "a"}) },
		"left":         func(q *Queue, a Answer) { q.Apply(3000, &Leave{a.Ordinal, a.Incarnation}) },
		"joined again": func(q *Queue, _ Answer) { q.Apply(3000, &Join{ID: "a"}) },
	} {
		t.Run(name, func(t *testing.T) {
			q := New("job", [16]byte{}, 1, Options{FirstTimeout: time.Second, TimeoutMin: time.Second})
			q.Apply(1, &Report{Digest: [32]byte{1}, Table: tableOf(t, 3)})
			a := q.Apply(1, &Join{ID: "a"})
			q.Apply(1, &Request{Trainer: a.Ordinal, Incarnation: a.Incarnation, Seq: 1, Ack: 1, Want: true})
			q.Apply(2000, &Tick{})
			end(q, a)
			q.Ready()
			q.Apply(60_000, &Tick{})
			if found := readyEffects(q); slices.ContainsFunc(found, func(e Effect) bool { return e.Key().Kind == OnTrainerHung }) {
				t.Errorf("found %v", found)
			}
		})
	}
}
