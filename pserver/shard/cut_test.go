package shard

import (
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"trainmaster/pserver/model"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/placement"
)

// Trainers push to random blocks while cuts are taken. Every push is a ticket:
// drawn before the push began, and entered after it ended. A cut must not have a
// push that began after the cut ended or miss one that ended before the cut
// began, its blocks must agree with their versions and marks, and whatever a
// trainer did before a push that is in the cut is in it too.
func TestCutsAreMoments(t *testing.T) {
	const trainers, blocks, steps = 3, 5, 400
	table, err := placement.New([]placement.Tensor{{Name: "w", Shape: []int{blocks * placement.BlockElements}}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(optimizer.Config{Kind: optimizer.SGD, LearningRate: 1}, false, table)
	if err != nil {
		t.Fatal(err)
	}
	s := New(nil, 0, 1, time.Minute, 0)
	h := newView(m, 0)
	for _, b := range h.blocks {
		b.fill(Values{Floats: make([]float32, b.Len)}, m.Rule)
	}
	s.view.Store(h)
	s.ready.Store(true)

	done := make([]struct { // by trainer: the block of each step, and how many have ended
		mu    sync.Mutex
		order []int
	}, trainers)
	var group sync.WaitGroup
	for i := range trainers {
		tr, fault := s.enter(h, uint32(i), uint64(i)+1)
		if fault != nil {
			t.Fatal(fault)
		}
		group.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 0))
			grad := slices.Repeat([]float32{-1}, placement.BlockElements)
			for step := uint64(1); step <= steps; step++ {
				b := h.blocks[r.IntN(blocks)]
				if _, fault := s.Push(h, b, tr, Update{Step: step, Scale: 1}, Values{Floats: grad}, nil); fault != nil {
					t.Error(fault)
				}
				done[i].mu.Lock()
				done[i].order = append(done[i].order, b.Local)
				done[i].mu.Unlock()
			}
		})
	}
	ended := func() (n [trainers]int) {
		for i := range done {
			done[i].mu.Lock()
			n[i] = len(done[i].order)
			done[i].mu.Unlock()
		}
		return n
	}
	for cuts := 0; ; cuts++ {
		before := ended()
		c := s.StartCut(nil)
		after := ended() // at most one more of each trainer may be under way
		var images []*Image
		for _, b := range slices.Backward(h.blocks) {
			images = append(images, b.Collect(c))
		}
		slices.Reverse(images)
		s.EndCut(h)
		total := uint64(0)
		for b, image := range images {
			total += image.Version
			for i, v := range image.Params {
				if v != float32(image.Version) {
					t.Fatalf("cut %d: element %d of block %d is %v at version %d", cuts, i, b, v, image.Version)
				}
			}
		}
		counted := uint64(0)
		for i := range trainers {
			upTo := uint64(0) // the trainer's last step in the cut
			for _, image := range images {
				upTo = max(upTo, image.Applied[i])
			}
			if int(upTo) < before[i] || int(upTo) > after[i]+1 {
				t.Fatalf("cut %d has trainer %d up to step %d: %d had ended before the cut, %d after", cuts, i, upTo, before[i], after[i])
			}
			done[i].mu.Lock()
			order := slices.Clone(done[i].order)
			done[i].mu.Unlock()
			last := map[int]uint64{}
			for step, b := range order[:min(len(order), int(upTo))] {
				last[b] = uint64(step) + 1
			}
			for b, image := range images {
				if want := last[b]; image.Applied[i] != want && image.Applied[i] != upTo {
					t.Fatalf("cut %d: trainer %d, block %d is at step %d, expected %d", cuts, i, b, image.Applied[i], want)
				}
			}
			counted += upTo
		}
		if counted != total {
			t.Fatalf("cut %d: marks say %d pushes, versions %d", cuts, counted, total)
		}
		if before == [trainers]int{steps, steps, steps} {
			t.Logf("%d cuts", cuts)
			break
		}
	}
	group.Wait()
}

// A commit leaves to a cut what the blocks were before it.
func TestCutsBeforeACommit(t *testing.T) {
	table, err := placement.New([]placement.Tensor{{Name: "w", Shape: []int{2*placement.BlockElements + 5}}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(optimizer.Config{Kind: optimizer.Momentum, LearningRate: 1, Momentum: 0.5}, true, table)
	if err != nil {
		t.Fatal(err)
	}
	s := New(nil, 0, 1, time.Minute, 1<<30)
	h := newView(m, 0)
	for _, b := range h.blocks {
		b.fill(Values{Floats: make([]float32, b.Len)}, m.Rule)
	}
	s.view.Store(h)
	s.ready.Store(true)
	tr, fault := s.enter(h, 0, 1)
	if fault != nil {
		t.Fatal(fault)
	}
	for version := range uint64(3) {
		for _, b := range h.blocks {
			grad := slices.Repeat([]float32{-1}, b.Len)
			if fault := s.stage(b, tr, Gradient{Version: version, Records: 1}, Values{Floats: grad}); fault != nil {
				t.Fatal(fault)
			}
		}
		cut := s.StartCut(nil)
		var params, state [][]float32
		for _, b := range h.blocks {
			params, state = append(params, slices.Clone(b.params)), append(state, slices.Clone(b.state))
		}
		if _, err := s.Commit(1, version+1, []Contributor{{0, 1, 1}}, 1); err != nil {
			t.Fatal(err)
		}
		for k, b := range h.blocks {
			i := b.Collect(cut)
			if i.Version != version || !slices.Equal(i.Params, params[k]) || !slices.Equal(i.State, state[k]) {
				t.Errorf("cut of version %d: block %d is another, of version %d", version, k, i.Version)
			}
			if slices.Equal(b.params, params[k]) {
				t.Errorf("commit of version %d changed nothing", version+1)
			}
			b.Recycle(i)
		}
		s.EndCut(h)
	}
}

// The memory for copies is reserved before the first cut, and no cut takes more.
func TestCutsHaveTheirRoom(t *testing.T) {
	table, err := placement.New([]placement.Tensor{{Name: "w", Shape: []int{3 * placement.BlockElements}}, {Name: "b", Shape: []int{1000}}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(optimizer.Config{Kind: optimizer.Adam}, false, table)
	if err != nil {
		t.Fatal(err)
	}
	s := New(nil, 0, 1, time.Minute, 0)
	h := newView(m, 0)
	for _, b := range h.Blocks() {
		b.fill(Values{Floats: make([]float32, b.Len)}, m.Rule)
	}
	s.view.Store(h)
	s.ready.Store(true)
	s.Reserve()
	room := func() map[*float32]bool {
		all := map[*float32]bool{}
		for _, b := range h.Blocks() {
			all[&b.spare.Params[:1][0]], all[&b.spare.State[:1][0]] = true, true
		}
		return all
	}
	before := room()
	if len(before) != 2*len(h.Blocks()) {
		t.Fatalf("room for %d of %d blocks", len(before)/2, len(h.Blocks()))
	}
	tr, fault := s.enter(h, 0, 1)
	if fault != nil {
		t.Fatal(fault)
	}
	for step := range uint64(3) {
		cut := s.StartCut(nil)
		order := slices.Clone(h.Blocks()) // another one each time, of blocks of several sizes
		if step%2 == 1 {
			slices.Reverse(order)
		}
		for _, b := range order {
			if _, fault := s.Push(h, b, tr, Update{Step: step + 1, Scale: 1}, Values{Floats: make([]float32, b.Len)}, nil); fault != nil {
				t.Fatal(fault)
			}
		}
		h.Blocks()[1].Recycle(h.Blocks()[1].Collect(cut)) // the others were preserved and are dropped
		s.EndCut(h)
		if after := room(); !maps.Equal(before, after) {
			t.Fatalf("cut %d: room for %d blocks, expected the same %d", step, len(after)/2, len(before)/2)
		}
	}
}
