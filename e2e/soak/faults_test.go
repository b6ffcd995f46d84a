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

func TestSameSeedDrawsTheSameFaults(t *testing.T) {
	const n = 2000
	if !slices.Equal(drawn(7, n), drawn(7, n)) {
		t.Error("same seed: expected equal faults")
	}
	if slices.Equal(drawn(7, n), drawn(8, n)) {
		t.Error("different seeds: expected different faults")
	}
	seen := map[string]bool{}
	for _, d := range drawn(7, n) {
		seen[d.fault.name] = true
		if d.length < d.fault.least || d.length > d.fault.most || d.pause < leastPause || d.pause > mostPause {
			t.Fatalf("%s: duration %v or pause %v outside its limits", d.fault.name, d.length, d.pause)
		}
	}
	for _, f := range faults {
		if !seen[f.name] {
			t.Errorf("%q: not drawn in %d draws", f.name, n)
		}
	}
}

func TestClaimIsAllOrNothing(t *testing.T) {
	var a, b, c target
	if !claim(&a, &b) {
		t.Fatal("unclaimed targets: expected the claim to succeed")
	}
	if claim(&c, &a) {
		t.Fatal("claimed target: expected the claim to fail")
	}
	if !claim(&c) {
		t.Error("target of a failed claim: expected it to be released")
	}
}

func TestFaultsDoNotEndTheSurvivor(t *testing.T) {
	for which := range 100 {
		if n := mayBe(killed, which, masters); n == survivor || n < 0 || n >= masters {
			t.Fatalf("draw %d: selected process %d", which, n)
		}
	}
	if b := onMaster(theLeader, killed)(t.Context(), &injector{cluster: &cluster{}, leader: func() int { return survivor }}, 0); b != nil {
		t.Error("survivor leads: expected no fault that kills it")
	}
}
