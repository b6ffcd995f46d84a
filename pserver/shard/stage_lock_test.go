package shard

import (
	"testing"
	"time"
)

// A commit locks the stages of several trainers while others look at all stages, as Describe does at each cut.
func TestCommitDoesNotBlockReadersOfAllStages(t *testing.T) {
	s := New(nil, 0, 1, time.Second, 1<<20)
	var contributors []Contributor
	for incarnation := uint64(1); incarnation <= 8; incarnation++ {
		s.stages.byIncarnation[incarnation] = &stage{incarnation: incarnation, version: 4, records: 1}
		contributors = append(contributors, Contributor{Ordinal: uint32(incarnation), Incarnation: incarnation, Records: 1})
	}
	done := make(chan struct{})
	go func() {
		for s.stages.mostRows(); ; s.stages.mostRows() {
			select {
			case <-done:
				return
			default:
			}
		}
	}()
	go func() {
		defer close(done)
		for range 20_000 {
			sums, _, err := s.contributions(4, contributors, &View{})
			unlockAll(sums)
			if err != nil {
				t.Error(err)
				return
			}
		}
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("expected 20,000 commits beside reads of all stages, found that both wait for each other")
	}
}
