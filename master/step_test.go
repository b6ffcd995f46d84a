package master

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"trainmaster/taskqueue"
)

func staged(t *testing.T, s *steps, version uint64, ordinals ...taskqueue.Ordinal) {
	t.Helper()
	for _, o := range ordinals {
		if current, err := s.stage(version, Contributor{Ordinal: o, Incarnation: uint64(o) * 10, Records: int(o)}); err != nil || !current {
			t.Fatalf("trainer %d at version %d: %v, %v", o, version, current, err)
		}
	}
}

// A step is complete when all that run have staged, and has those only, in their order.
func TestStepIsOfThoseThatRun(t *testing.T) {
	type ordinals = []taskqueue.Ordinal
	tests := map[string]struct{ staged, runners, want ordinals }{
		"nobody runs":               {ordinals{1}, nil, nil},
		"one has not staged":        {ordinals{1, 3}, ordinals{1, 2, 3}, nil},
		"all have":                  {ordinals{3, 1, 2}, ordinals{1, 2, 3}, ordinals{1, 2, 3}},
		"a lost one is left out":    {ordinals{1, 2, 3}, ordinals{1, 3}, ordinals{1, 3}},
		"a new one is waited for":   {ordinals{1, 2}, ordinals{1, 2, 4}, nil},
		"ten is not less than nine": {ordinals{10, 9}, ordinals{9, 10}, ordinals{9, 10}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s, err := newSteps(nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			staged(t, s, 0, tt.staged...)
			step, ok := s.complete(tt.runners, everyone, 7)
			var got ordinals
			for _, c := range step.Contributors {
				got = append(got, c.Ordinal)
				if c.Incarnation != uint64(c.Ordinal)*10 || c.Records != int(c.Ordinal) {
					t.Errorf("contributor %+v is not as it was staged", c)
				}
			}
			if ok != (tt.want != nil) || !reflect.DeepEqual(got, tt.want) {
				t.Fatalf("got %v, %v; want %v", got, ok, tt.want)
			}
			if ok && (step.Version != 1 || step.Epoch != 7) {
				t.Errorf("got version %d, epoch %d", step.Version, step.Epoch)
			}
		})
	}
}

func TestStageIsOfTheLastVersion(t *testing.T) {
	s, err := newSteps([]byte(`{"version":5,"epoch":1,"contributors":[{"ordinal":1,"incarnation":10,"records":3}]}`), 0)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		version uint64
		records int
		current bool
		words   string
	}{
		"late":                  {4, 3, false, ""},
		"from the future":       {6, 3, false, "staged at version 6: expected at most 5"},
		"refused by a shard":    {5, 0, true, ""},
		"a negative number":     {5, -1, false, "staged -1 records"},
		"more than a step has":  {5, 1 << 32, false, "expected 1 to 4294967295"},
		"of the last version":   {5, 3, true, ""},
		"once more":             {5, 3, true, ""},
		"the greatest there is": {5, 1<<32 - 1, true, ""},
	} {
		current, err := s.stage(tt.version, Contributor{2, 20, tt.records})
		if current != tt.current || (err == nil) != (tt.words == "") || err != nil && !strings.Contains(err.Error(), tt.words) {
			t.Errorf("%s: got %v, %v", name, current, err)
		}
	}
	if _, err := newSteps([]byte(`{`), 0); err == nil || !strings.Contains(err.Error(), StepKey) {
		t.Errorf("damaged: got %v", err)
	}
}

// The same question has the same answer, however often it is asked.
func TestStageIsAnswered(t *testing.T) {
	s, _ := newSteps(nil, 0)
	staged(t, s, 0, 1, 2)
	step, ok := s.complete([]taskqueue.Ordinal{1}, everyone, 1)
	if !ok {
		t.Fatal("not complete")
	}
	s.commit(step)
	for range 2 {
		for _, tt := range []struct {
			by       taskqueue.Ordinal
			version  uint64
			included bool
		}{{1, 0, true}, {2, 0, false}, {1, 1, false}} {
			a := staging{trainer: tt.by, incarnation: uint64(tt.by) * 10, version: tt.version}
			s.answer(&a)
			if a.committed != 1 || a.included != tt.included {
				t.Errorf("trainer %d at version %d: committed %d, included %v", tt.by, tt.version, a.committed, a.included)
			}
		}
	}
	a := staging{trainer: 1, incarnation: 11, version: 0}
	if s.answer(&a); a.included {
		t.Error("another incarnation is taken for the contributor")
	}
	if len(s.staged) != 0 {
		t.Error("gradients of the committed step are still staged")
	}
}

// With backups a step is of the first that come; who comes too late again and again is waited for.
func TestStepWithBackups(t *testing.T) {
	type ordinals = []taskqueue.Ordinal
	for name, tt := range map[string]struct {
		backups                      int
		staged, late, runners, wants ordinals
	}{
		"one may be missing":            {1, ordinals{3, 1}, nil, ordinals{1, 2, 3}, ordinals{1, 3}},
		"two may not":                   {1, ordinals{1}, nil, ordinals{1, 2, 3}, nil},
		"nobody is left out needlessly": {1, ordinals{1, 2, 3}, nil, ordinals{1, 2, 3}, ordinals{1, 2, 3}},
		"somebody is needed":            {5, nil, nil, ordinals{1, 2, 3}, nil},
		"one is enough":                 {5, ordinals{2}, nil, ordinals{1, 2, 3}, ordinals{2}},
		"a lost one is no contributor":  {1, ordinals{3, 4}, nil, ordinals{1, 2, 3}, nil},
		"the late one is waited for":    {1, ordinals{1, 3}, ordinals{2}, ordinals{1, 2, 3}, nil},
		"another one is not":            {1, ordinals{1, 2}, ordinals{2}, ordinals{1, 2, 3}, ordinals{1, 2}},
		"a late one that is lost":       {1, ordinals{1}, ordinals{2}, ordinals{1, 3}, ordinals{1}},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := newSteps([]byte(`{"version":9,"epoch":1,"contributors":[]}`), tt.backups)
			for _, o := range tt.late {
				for range mostLate {
					if current, err := s.stage(8, Contributor{Ordinal: o, Incarnation: 1, Records: 1}); current || err != nil {
						t.Fatalf("a stage of version 8: %v, %v", current, err)
					}
				}
			}
			staged(t, s, 9, tt.staged...)
			step, ok := s.complete(tt.runners, everyone, 1)
			var got ordinals
			for _, c := range step.Contributors {
				got = append(got, c.Ordinal)
			}
			if ok != (tt.wants != nil) || !reflect.DeepEqual(got, tt.wants) {
				t.Fatalf("got %v, %v; want %v", got, ok, tt.wants)
			}
			if s.commit(step); ok && slices.ContainsFunc(got, func(o taskqueue.Ordinal) bool { return s.late[o] > 0 }) {
				t.Error("who had a part in the step still counts as late")
			}
		})
	}
}

// A trainer that did not hear that it had a part in a step is told so however many versions
// later, by the next leader too; else it would bring the same mini-batch in twice.
func TestStageIsAnsweredLater(t *testing.T) {
	s, _ := newSteps(nil, 1)
	runners := []taskqueue.Ordinal{1, 2}
	for version := range uint64(4) {
		staged(t, s, version, 2)
		if version == 0 {
			staged(t, s, version, 1)
		}
		step, ok := s.complete(runners, everyone, 1)
		if !ok {
			t.Fatalf("version %d is not complete", version+1)
		}
		if s.commit(step); version == 2 {
			var err error
			if s, err = newSteps(step.Encode(), 1); err != nil {
				t.Fatal(err)
			}
		}
		for at, included := range []bool{true, false, false, false}[:version+1] {
			a := staging{trainer: 1, incarnation: 10, version: uint64(at)}
			if s.answer(&a); a.committed != version+1 || a.included != included {
				t.Errorf("at version %d: committed %d, included %v in version %d", version+1, a.committed, a.included, at+1)
			}
		}
	}
	staged(t, s, 4, 2)
	if step, _ := s.complete([]taskqueue.Ordinal{2}, everyone, 1); len(step.Earlier) > 0 {
		t.Errorf("%v is kept of a trainer that is gone", step.Earlier)
	}
}

// Nobody who tells the shards can hold the committer up: the newest step takes the place of
// one that was not taken.
func TestHandNeverBlocks(t *testing.T) {
	c := make(chan Step, 1)
	for v := range uint64(5) {
		hand(c, Step{Version: v + 1})
	}
	if got := (<-c).Version; got != 5 {
		t.Errorf("got step %d, want 5", got)
	}
}

func everyone(taskqueue.Ordinal, uint64) bool { return true }

// An ordinal whose trainer was replaced runs again, and the stage is of the incarnation before.
func TestStepLeavesOutIncarnationWithoutSession(t *testing.T) {
	s, err := newSteps(nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.stage(0, Contributor{1, 10, 5}); err != nil {
		t.Fatal(err)
	}
	known := func(_ taskqueue.Ordinal, incarnation uint64) bool { return incarnation == 11 }
	if step, ok := s.complete([]taskqueue.Ordinal{1}, known, 1); ok {
		t.Errorf("step %+v: expected none", step)
	}
	if _, err := s.stage(0, Contributor{1, 11, 5}); err != nil {
		t.Fatal(err)
	}
	if step, ok := s.complete([]taskqueue.Ordinal{1}, known, 1); !ok || step.Contributors[0].Incarnation != 11 {
		t.Errorf("step %+v, %v: expected one of incarnation 11", step, ok)
	}
}
