package decide

import "testing"

func TestProbe(t *testing.T) {
	const fresh, stale = 0, 1500
	type step struct {
		beats    []int64 // ages of the beats since the last look
		etcd     bool    // etcd answers us
		revision int64
		want     Verdict
	}
	none := func(revision int64, want Verdict) step { return step{revision: revision, want: want} }
	for name, steps := range map[string][]step{
		"beats keep it alive":        {{[]int64{fresh}, true, 5, Alive}, {[]int64{fresh}, true, 5, Alive}, {[]int64{fresh, fresh}, true, 5, Alive}},
		"three missed beats":         {none(5, Alive), none(5, Alive), none(5, Silent)},
		"a beat in between":          {none(5, Alive), none(5, Alive), {[]int64{fresh}, true, 5, Alive}, none(5, Alive), none(5, Alive), none(5, Silent)},
		"a commit acquits":           {none(5, Alive), none(5, Alive), none(6, Alive), none(6, Alive), none(6, Alive), none(6, Silent)},
		"it lost etcd, we did not":   {{[]int64{stale}, true, 5, Alive}, {[]int64{stale}, true, 5, Alive}, {[]int64{stale}, true, 5, Silent}},
		"etcd answers nobody":        {{[]int64{stale}, false, 5, Alive}, {[]int64{stale}, false, 5, Alive}, {[]int64{stale}, false, 5, Alive}, {[]int64{stale}, false, 5, Alive}},
		"one fresh beat among stale": {{[]int64{stale, fresh}, true, 5, Alive}, {[]int64{fresh, stale}, true, 5, Alive}, {[]int64{stale, fresh}, true, 5, Alive}},
	} {
		var p Probe
		for i, s := range steps {
			for _, age := range s.beats {
				p.Hears(Beat{AgeMs: age}, s.etcd)
			}
			if got := p.Look(s.revision); got != s.want {
				t.Errorf("%s: look %d: %v, expected %v", name, i, got, s.want)
			}
		}
	}
}
