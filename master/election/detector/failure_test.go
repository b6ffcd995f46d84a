package detector

import "testing"

func TestFailureDetector(t *testing.T) {
	const fresh, stale = 0, 1500
	type step struct {
		beats    []int64 // ages of the heartbeats since the last check
		etcd     bool    // this master has a connection to etcd
		revision int64
		want     Verdict
	}
	none := func(revision int64, want Verdict) step { return step{revision: revision, want: want} }
	for name, steps := range map[string][]step{
		"heartbeats":                      {{[]int64{fresh}, true, 5, Alive}, {[]int64{fresh}, true, 5, Alive}, {[]int64{fresh, fresh}, true, 5, Alive}},
		"three missed heartbeats":         {none(5, Alive), none(5, Alive), none(5, Silent)},
		"a heartbeat in between":          {none(5, Alive), none(5, Alive), {[]int64{fresh}, true, 5, Alive}, none(5, Alive), none(5, Alive), none(5, Silent)},
		"a commit clears suspicion":       {none(5, Alive), none(5, Alive), none(6, Alive), none(6, Alive), none(6, Alive), none(6, Silent)},
		"only the leader lost etcd":       {{[]int64{stale}, true, 5, Alive}, {[]int64{stale}, true, 5, Alive}, {[]int64{stale}, true, 5, Silent}},
		"both lost etcd":                  {{[]int64{stale}, false, 5, Alive}, {[]int64{stale}, false, 5, Alive}, {[]int64{stale}, false, 5, Alive}, {[]int64{stale}, false, 5, Alive}},
		"one fresh heartbeat among stale": {{[]int64{stale, fresh}, true, 5, Alive}, {[]int64{fresh, stale}, true, 5, Alive}, {[]int64{stale, fresh}, true, 5, Alive}},
	} {
		var p failureDetector
		for i, s := range steps {
			for _, age := range s.beats {
				p.receive(Heartbeat{AgeMs: age}, s.etcd)
			}
			if got := p.look(s.revision); got != s.want {
				t.Errorf("%s: look %d: %v, expected %v", name, i, got, s.want)
			}
		}
	}
}
