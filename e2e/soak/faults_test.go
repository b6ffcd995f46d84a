package main

import (
	"slices"
	"testing"
)

func drawn(seed uint64, n int) (list []draw) {
	d := newDraws(seed)
	for range n {
		list = append(list, d.next())
	}
	return list
}

func TestSeedDrawsTheSame(t *testing.T) {
	const n = 2000
	if !slices.Equal(drawn(7, n), drawn(7, n)) {
		t.Error("the same seed drew other faults")
	}
	if slices.Equal(drawn(7, n), drawn(8, n)) {
		t.Error("another seed drew the same faults")
	}
	seen := map[string]bool{}
	for _, d := range drawn(7, n) {
		seen[d.fault.name] = true
		if d.length < d.fault.least || d.length > d.fault.most || d.pause < leastPause || d.pause > mostPause {
			t.Fatalf("%s for %v, then a pause of %v", d.fault.name, d.length, d.pause)
		}
	}
	for _, f := range faults {
		if !seen[f.name] {
			t.Errorf("%q was not drawn once in %d", f.name, n)
		}
	}
}

func TestClaimIsAllOrNothing(t *testing.T) {
	var a, b, c target
	if !claim(&a, &b) {
		t.Fatal("nobody has them")
	}
	if claim(&c, &a) {
		t.Fatal("a fault got what another one has")
	}
	if !claim(&c) {
		t.Error("what was not got is not given back")
	}
}

// What ends processes leaves the survivor alone.
func TestSurvivorIsSpared(t *testing.T) {
	for which := range 100 {
		if n := mayBe(killed, which, masters); n == survivor || n < 0 || n >= masters {
			t.Fatalf("%d: process %d", which, n)
		}
	}
	if b := onMaster(theLeader, killed)(t.Context(), &injector{cluster: &cluster{}, leader: func() int { return survivor }}, 0); b != nil {
		t.Error("the survivor was killed when it led")
	}
}
