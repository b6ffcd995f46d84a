package master

import "testing"

func TestProbe(t *testing.T) {
	const fresh, stale = 0, 1500
	type step struct {
		beats    []int64 // ages of the beats since the last look
		etcd     bool    // etcd answers us
		revision int64
		want     verdict
	}
	none := func(revision int64, want verdict) step { return step{revision: revision, want: want} }
	for name, steps := range map[string][]step{
		"beats keep it alive":        {{[]int64{fresh}, true, 5, alive}, {[]int64{fresh}, true, 5, alive}, {[]int64{fresh, fresh}, true, 5, alive}},
		"three missed beats":         {none(5, alive), none(5, alive), none(5, dead)},
		"a beat in between":          {none(5, alive), none(5, alive), {[]int64{fresh}, true, 5, alive}, none(5, alive), none(5, alive), none(5, dead)},
		"a commit acquits":           {none(5, alive), none(5, alive), none(6, alive), none(6, alive), none(6, alive), none(6, dead)},
		"it lost etcd, we did not":   {{[]int64{stale}, true, 5, alive}, {[]int64{stale}, true, 5, alive}, {[]int64{stale}, true, 5, dead}},
		"etcd answers nobody":        {{[]int64{stale}, false, 5, alive}, {[]int64{stale}, false, 5, alive}, {[]int64{stale}, false, 5, alive}, {[]int64{stale}, false, 5, alive}},
		"one fresh beat among stale": {{[]int64{stale, fresh}, true, 5, alive}, {[]int64{fresh, stale}, true, 5, alive}, {[]int64{stale, fresh}, true, 5, alive}},
	} {
		var p probe
		for i, s := range steps {
			for _, age := range s.beats {
				p.hears(Beat{AgeMs: age}, s.etcd)
			}
			if got := p.look(s.revision); got != s.want {
				t.Errorf("%s: look %d: %v, expected %v", name, i, got, s.want)
			}
		}
	}
}
