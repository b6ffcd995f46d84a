package master

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

// etcd answers reads and keep-alives, but no write of the parts of a table. The term ends within its bound, and no
// caller waits longer.
func TestPartsOfUnknownOutcomeEndTheTerm(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		m, stop, ended := leads(t, store, Config{}, nil)
		reported := hangAtParts(t, store, m)
		defer time.Sleep(time.Minute) // until all goroutines have ended, also without the bound
		defer close(store.partsHang)
		began := time.Now()
		joined := make(chan error, 1)
		go func() {
			_, err := m.Join(context.Background(), "a", "")
			joined <- err
		}()
		if err := within(t, "answer to a join", 2*store.TTL(), joined); err != nil && !errors.Is(err, ErrNotLeader) {
			t.Error(err)
		}
		if err := within(t, "answer to the report", 2*store.TTL(), reported); !errors.Is(err, ErrNotLeader) {
			t.Errorf("report: got %v, expected %v", err, ErrNotLeader)
		}
		if took := time.Since(began); took < store.TTL()/2 {
			t.Errorf("end of the term: after %v, expected %v", took, store.TTL())
		}
		go stop() // it waits for the end
		within(t, "end of a stopped master", 2*store.TTL(), ended)
	})
}

// A master that stops does not wait for writes of parts.
func TestStoppedMasterGivesUpParts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		m, stop, ended := leads(t, store, Config{}, nil)
		reported := hangAtParts(t, store, m)
		defer time.Sleep(time.Minute) // until all goroutines have ended, also without the bound
		defer close(store.partsHang)
		go stop() // it waits for the end
		within(t, "end of a stopped master", time.Second, ended)
		if err := within(t, "answer to the report", time.Second, reported); err == nil {
			t.Error("report: expected an error")
		}
	})
}

// hangAtParts reports a dataset while writes of parts get no answer.
func hangAtParts(t *testing.T, store *memory, m *Master) (reported <-chan error) {
	t.Helper()
	store.mu.Lock()
	store.partsHang = make(chan struct{})
	store.mu.Unlock()
	table := taskqueue.NewTable(1)
	if err := table.Add(taskqueue.File{Path: "/data/a", Size: 100}, []recordio.Index{{Size: 10, Records: 1}}); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- m.Register(context.Background(), table, [32]byte{1}) }()
	time.Sleep(30 * time.Millisecond) // virtual time: until the committer writes the parts
	return done
}

// The parts of a table fill etcd and can be removed only after an administrator makes room. They are removed then,
// without another report. A repeated report before that leaves no further parts.
func TestPartsOfAFullStoreAreRemovedOnceThereIsRoom(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		m, stop, ended := leads(t, store, Config{}, nil)
		defer func() {
			stop()
			<-ended
		}()
		table := tableOfParts(t, 3)
		left := func() (n int) {
			store.mu.Lock()
			defer store.mu.Unlock()
			for key := range store.keys {
				if strings.HasPrefix(key, "/parts/") {
					n++
				}
			}
			return n
		}
		for range 3 {
			store.mu.Lock()
			store.partsFit = 2
			store.mu.Unlock()
			if err := m.Register(t.Context(), table, [32]byte{1}); !errors.Is(err, taskqueue.ErrStoreFull) {
				t.Errorf("report to a full store: got %v, expected %v", err, taskqueue.ErrStoreFull)
			}
			if n := left(); n != 1 {
				t.Fatalf("full store: found %d parts, expected 1", n)
			}
		}
		store.mu.Lock()
		store.partsFit, store.refuse = 0, nil
		store.mu.Unlock()
		time.Sleep(2 * removeEvery)
		if n := left(); n != 0 {
			t.Errorf("refused reports: found %d parts, expected none", n)
		}
		if err := m.Register(t.Context(), table, [32]byte{1}); err != nil {
			t.Error(err)
		}
		if n := left(); n < 3 {
			t.Errorf("dataset: found %d parts, expected at least 3", n)
		}
	})
}

// tableOfParts returns a table of about n parts.
func tableOfParts(t *testing.T, n int) *taskqueue.Table {
	t.Helper()
	table := taskqueue.NewTable(1)
	for f := range n {
		var chunks []recordio.Index
		offset := int64(0)
		for i := range 1 << 18 { // as many as a part takes
			next := recordio.Index{Offset: offset, Size: uint32(i), Records: 1}
			chunks, offset = append(chunks, next), next.End()
		}
		if err := table.Add(taskqueue.File{Path: fmt.Sprint("/data/", f), Size: offset}, chunks); err != nil {
			t.Fatal(err)
		}
	}
	return table
}

// A full store refuses a segment. Its parts are removed, and the next append has the same keys.
func TestPartsOfARefusedSegmentAreRemoved(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		m, stop, ended := leads(t, store, Config{}, nil)
		defer func() {
			stop()
			<-ended
		}()
		if err := m.ReportSet(t.Context(), taskqueue.SetSpec{Name: "clicks", Online: true}, nil); err != nil {
			t.Fatal(err)
		}
		appends := func() (growingSet, error) {
			term, err := m.leading()
			if err != nil {
				t.Fatal(err)
			}
			s, err := term.growing(t.Context(), "clicks")
			if err != nil {
				t.Fatal(err)
			}
			table := s.table.Extend()
			chunks := make([]recordio.Index, 1<<19) // of two parts
			for i := range chunks {
				chunks[i] = recordio.Index{Size: 1, Records: 1}
				if i > 0 {
					chunks[i].Offset = chunks[i-1].End()
				}
			}
			if err := table.Add(taskqueue.File{Path: fmt.Sprint("/data/", table.Chunks())}, chunks); err != nil {
				t.Fatal(err)
			}
			err = m.storeSegment(t.Context(), term, s, table, m.config.Log)
			if published := term.Table(0); err == nil && published != table {
				t.Errorf("tasks are made from a table of %d chunks, expected %d", published.Chunks(), table.Chunks())
			}
			return s, err
		}
		left := func() (n int) {
			store.mu.Lock()
			defer store.mu.Unlock()
			for key := range store.keys {
				if strings.HasPrefix(key, "/parts/") {
					n++
				}
			}
			return n
		}
		store.mu.Lock()
		store.partsFit = 2
		store.mu.Unlock()
		if s, err := appends(); !errors.Is(err, taskqueue.ErrStoreFull) || s.parts != 0 {
			t.Errorf("append to a full store: %d parts before, %v", s.parts, err)
		}
		store.mu.Lock()
		store.partsFit, store.refuse = 0, nil
		store.mu.Unlock()
		time.Sleep(2 * removeEvery)
		if n := left(); n != 0 {
			t.Errorf("refused append: found %d parts, expected none", n)
		}
		for i := range 2 {
			if s, err := appends(); err != nil || s.parts != 2*i || s.table.Tasks() != i<<19 {
				t.Errorf("append %d: %d parts and %d tasks before, %v", i, s.parts, s.table.Tasks(), err)
			}
		}
		if n := left(); n != 4 {
			t.Errorf("found %d parts, expected 4", n)
		}
	})
}

// F250: a full store refuses an append, and the parts of this append stay. When the store has room, the next append writes its parts under the
// same keys. The later removal of the parts of the refused append does not remove them.
func TestPartsOfTheAppendAfterARefusedOneStay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newMemory()
		m, stop, ended := leads(t, store, Config{}, nil)
		defer func() {
			stop()
			<-ended
		}()
		if err := m.ReportSet(t.Context(), taskqueue.SetSpec{Name: "clicks", Online: true}, nil); err != nil {
			t.Fatal(err)
		}
		appends := func() error {
			term, err := m.leading()
			if err != nil {
				t.Fatal(err)
			}
			s, err := term.growing(t.Context(), "clicks")
			if err != nil {
				t.Fatal(err)
			}
			table := s.table.Extend()
			chunks := make([]recordio.Index, 1<<19) // of two parts
			for i := range chunks {
				chunks[i] = recordio.Index{Size: 1, Records: 1}
				if i > 0 {
					chunks[i].Offset = chunks[i-1].End()
				}
			}
			if err := table.Add(taskqueue.File{Path: fmt.Sprint("/data/", table.Chunks())}, chunks); err != nil {
				t.Fatal(err)
			}
			return m.storeSegment(t.Context(), term, s, table, m.config.Log)
		}
		set := func(partsFit int, refuse error) {
			store.mu.Lock()
			defer store.mu.Unlock()
			store.partsFit, store.refuse = partsFit, refuse
		}
		set(2, nil)
		if err := appends(); !errors.Is(err, taskqueue.ErrStoreFull) {
			t.Fatalf("append to a full store: %v", err)
		}
		set(0, nil)
		if err := appends(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * removeEvery)
		store.mu.Lock()
		defer store.mu.Unlock()
		n := 0
		for key := range store.keys {
			if strings.HasPrefix(key, "/parts/") {
				n++
			}
		}
		if n != 2 {
			t.Errorf("the state names 2 parts, found %d in the store", n)
		}
	})
}
