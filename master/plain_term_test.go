package master

import (
	"testing"
	"time"

	"trainmaster/taskqueue"
)

// Plain connections end with the term that accepted them. Their tasks return immediately even if the leader changes
// every two seconds, and not after a grace period that begins again in each term.
func TestTasksOfPlainConnectionsOfEarlierTermsReturn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		m, stop, _ := leads(t, store, Config{}, nil)
		register(t, m, 1)
		if r, err := m.PlainAsk(t.Context(), &taskqueue.PlainAsk{Connection: "1:1", Want: true}); err != nil || r.Assignment == nil {
			t.Fatal(r, err)
		}
		stop()
		began, waited := time.Now(), time.Duration(0)
		for term := 0; waited == 0 && term < 10; term++ {
			store = store.copied()
			m, stop, _ = leads(t, store, Config{}, nil)
			for range 20 { // a term of two seconds
				r, err := m.PlainAsk(t.Context(), &taskqueue.PlainAsk{Connection: "1:2"})
				if err == nil && r.Assignment == nil && overview(t, m).Sets[0].Pending == 0 {
					waited = time.Since(began)
					break
				}
				time.Sleep(100 * time.Millisecond) // virtual time
			}
			stop()
		}
		stop()
		switch {
		case waited == 0:
			t.Error("expected the task to return within 10 terms")
		case waited > time.Second:
			t.Errorf("return of the task: after %v, expected at most 1s", waited)
		}
	})
}
