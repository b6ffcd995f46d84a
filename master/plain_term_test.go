package master

import (
	"testing"
	"time"

	"trainmaster/taskqueue"
)

// Connections do not outlive the term that accepted them. However often the leader changes, here every
// two seconds, the tasks of plain connections come back at once, not after a grace that each term begins anew.
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
			t.Error("the task did not come back in 10 terms")
		case waited > time.Second:
			t.Errorf("the task came back after %v, expected at most 1s", waited)
		}
	})
}
