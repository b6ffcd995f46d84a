package podmanager_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"trainmaster/master/podmanager"
	"trainmaster/taskqueue"
)

// F271, F292: random ends of pods, restarts of the leader, lost answers and late creates of deposed leaders lose no index. Two attempts of one index
// never run at the same time, and there are no more pods than the goal. An index has 1, 2 or 3 pods.
func TestRandomEventsKeepOnePodOfEachIndex(t *testing.T) {
	for seed := range uint64(300) {
		w := newWorld(seed, 1+int(seed%3))
		for range 120 {
			w.step()
			if err := w.check(); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
		if err := w.settle(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// world is a cluster, the stored state, and the leaders of a job.
type world struct {
	rand    *rand.Rand
	config  podmanager.Config
	now     taskqueue.Clock
	pods    map[string]*podmanager.Pod
	late    map[string]bool // UIDs of pods that a deposed leader created
	uids    int
	stored  podmanager.State
	term    int
	known   map[string]podmanager.Pod // pods that the leader has seen
	pending []late                    // actions in transit
}

type late struct {
	term   int
	action podmanager.Action
}

func newWorld(seed uint64, size int) *world {
	return &world{
		rand: rand.New(rand.NewPCG(seed, 1)), pods: map[string]*podmanager.Pod{}, late: map[string]bool{}, known: map[string]podmanager.Pod{},
		config: podmanager.Config{
			Job: "j", Instance: instance, MaxRelaunch: 2, OOMFactor: 2, Workers: podmanager.Group{Count: 4, Min: 0, Size: size, Memory: 1 << 30}, Servers: podmanager.Group{Count: 1},
		},
	}
}

func (w *world) chance(percent int) bool { return w.rand.IntN(100) < percent }

// step lets one thing happen.
func (w *world) step() {
	w.now += taskqueue.Clock(w.rand.IntN(3000))
	switch n := w.rand.IntN(10); {
	case n < 4:
		w.live()
	case n < 8:
		w.lead()
	case n == 8:
		w.deliver(false)
	case w.chance(30): // another leader, which has seen nothing yet
		w.term++
		w.known = map[string]podmanager.Pod{}
	default:
		w.state(w.stored.Scale(w.config, podmanager.Worker, 1+w.rand.IntN(4)))
	}
}

// state stores a state, as the committer does.
func (w *world) state(s podmanager.State) {
	again, err := podmanager.Decode(s.Encode())
	if err != nil {
		panic(err)
	}
	w.stored = again
}

// lead makes a plan, stores it, and executes its actions: immediately, late, or never.
func (w *world) lead() {
	d := podmanager.Plan(w.config, w.stored, w.observe(), w.now)
	if w.chance(10) {
		return // the commit was refused
	}
	w.state(d.State)
	for _, a := range d.Actions {
		switch {
		case w.chance(20): // the request was lost
		case w.chance(20):
			w.pending = append(w.pending, late{w.term, a})
		default:
			w.execute(a, false) // also if its answer is lost
		}
	}
}

// observe returns what the leader sees, with the pods that have gone.
func (w *world) observe() (seen podmanager.Observed) {
	for _, name := range slices.Sorted(maps.Keys(w.pods)) {
		w.known[name] = *w.pods[name]
	}
	for _, name := range slices.Sorted(maps.Keys(w.known)) {
		p := w.known[name]
		p.Gone = w.pods[name] == nil
		seen.Pods = append(seen.Pods, p)
	}
	return seen
}

// deliver executes actions in transit.
func (w *world) deliver(all bool) {
	for len(w.pending) > 0 && (all || w.chance(70)) {
		i := w.rand.IntN(len(w.pending))
		l := w.pending[i]
		w.pending = slices.Delete(w.pending, i, i+1)
		w.execute(l.action, l.term != w.term || l.action.Attempt != w.stored.Slot(l.action.Role, l.action.Index).Attempt)
	}
}

// execute is the API of the cluster.
func (w *world) execute(a podmanager.Action, isLate bool) {
	p := w.pods[a.Name]
	switch {
	case a.Verb == podmanager.Create && p == nil:
		w.uids++
		uid := fmt.Sprint(w.uids)
		w.late[uid] = isLate
		w.pods[a.Name] = &podmanager.Pod{Name: a.Name, UID: uid, Instance: instance, Role: a.Role, Index: a.Index, Attempt: a.Attempt, Rank: a.Rank, Size: a.Size, Phase: podmanager.Pending}
	case a.Verb == podmanager.Delete && p != nil && p.UID == a.UID:
		w.remove(p)
	}
}

func (w *world) remove(p *podmanager.Pod) {
	if p.Ended() && !p.Lost {
		delete(w.pods, p.Name)
		return
	}
	p.Deleting = true
}

// live lets something happen to a pod.
func (w *world) live() {
	names := slices.Sorted(maps.Keys(w.pods))
	if len(names) == 0 {
		return
	}
	p := w.pods[names[w.rand.IntN(len(names))]]
	switch n := w.rand.IntN(8); {
	case p.Deleting && n < 5: // it ends, and goes
		delete(w.pods, p.Name)
	case p.Deleting && n == 5:
		p.Lost = true
	case p.Ended():
		if n == 0 {
			delete(w.pods, p.Name) // by the garbage collection of the cluster
		}
	case n < 3:
		p.Phase = podmanager.Running
	case n == 3:
		p.Deleting = true // by a user, or an eviction
		p.Disruption = "EvictionByEvictionAPI"
	default:
		w.end(p)
	}
}

func (w *world) end(p *podmanager.Pod) {
	codes := []podmanager.Exit{{Code: 137}, {Code: 143}, {Code: 1}, {Code: 134}, {Code: 137, Reason: "OOMKilled"}, {Code: 0}}
	e := codes[w.rand.IntN(len(codes))]
	p.Exit, p.Phase = &e, podmanager.Failed
	if e.Code == 0 {
		p.Phase = podmanager.Succeeded
	}
}

// check compares the cluster with the promises.
func (w *world) check() error {
	alive := map[string]*podmanager.Pod{}
	for name, p := range w.pods {
		if p.Ended() || w.late[p.UID] {
			continue
		}
		index := fmt.Sprint(p.Role, p.Index)
		if other := alive[index]; other != nil && (other.Attempt != p.Attempt || other.Rank == p.Rank) {
			return fmt.Errorf("%s and %s are alive", name, other.Name)
		}
		alive[index] = p
		if p.Deleting {
			continue
		}
		if goal := 4; p.Index >= goal {
			return fmt.Errorf("%s is beyond the goal", name)
		}
	}
	return nil
}

// settle lets the cluster and the leader become stable, without faults.
func (w *world) settle() error {
	w.deliver(true)
	for range 40 {
		w.now += 400_000
		for _, p := range w.pods {
			if p.Deleting {
				delete(w.pods, p.Name)
			}
		}
		d := podmanager.Plan(w.config, w.stored, w.observe(), w.now)
		w.state(d.State)
		if d.End != nil {
			return nil // nothing is created any more
		}
		for _, a := range d.Actions {
			w.execute(a, false)
		}
	}
	clear(w.late)
	if err := w.check(); err != nil {
		return fmt.Errorf("at rest: %w", err)
	}
	for role, goal := range w.stored.Goals {
		for i := range goal.Count {
			slot := w.stored.Slot(role, i)
			completed := 0
			for rank := range w.config.Size(role) {
				name := podmanager.NameOfRank("j", role, i, slot.Attempt, rank)
				p := w.pods[name]
				if w.known[name].Phase == podmanager.Succeeded { // it waits for the others of its group
					completed++
				} else if slot.Done == podmanager.NotDone && (p == nil || p.Ended()) {
					return fmt.Errorf("at rest: rank %d of %s %d has no pod: %+v", rank, role, i, slot)
				}
			}
			if slot.Done == podmanager.NotDone && completed == w.config.Size(role) {
				return fmt.Errorf("at rest: %s %d has completed: %+v", role, i, slot)
			}
		}
	}
	for name, p := range w.pods {
		if slot := w.stored.Slot(p.Role, p.Index); !p.Ended() && (p.Attempt != slot.Attempt || p.Index >= w.stored.Goals[p.Role].Count) {
			return fmt.Errorf("at rest: %s is alive, expected attempt %d", name, slot.Attempt)
		}
	}
	return nil
}
