package taskqueue

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

// stepsAt returns the steps of a queue whose stored step is text.
func stepsAt(t *testing.T, text string) (*Queue, *syncSteps) {
	t.Helper()
	q := New("job", [16]byte{}, 1, Options{Sync: true})
	var stored []byte
	if text != "" {
		stored = []byte(text)
	}
	if err := q.RestoreStep(stored); err != nil {
		t.Fatal(err)
	}
	return q, q.sync
}

func staged(t *testing.T, s *syncSteps, version uint64, ordinals ...Ordinal) {
	t.Helper()
	for _, o := range ordinals {
		if current, err := s.stage(version, Contributor{Ordinal: o, Incarnation: uint64(o) * 10, Records: int(o)}); err != nil || !current {
			t.Fatalf("trainer %d at version %d: %v, %v", o, version, current, err)
		}
	}
}

// A step completes when all trainers that run a task have staged. It consists of their gradients, in the order of
// ordinals.
func TestStepCompletesOnceRunnersStaged(t *testing.T) {
	type ordinals = []Ordinal
	tests := map[string]struct{ staged, runners, want ordinals }{
		"no trainer runs":               {ordinals{1}, nil, nil},
		"one has not staged":            {ordinals{1, 3}, ordinals{1, 2, 3}, nil},
		"all have":                      {ordinals{3, 1, 2}, ordinals{1, 2, 3}, ordinals{1, 2, 3}},
		"a lost trainer is left out":    {ordinals{1, 2, 3}, ordinals{1, 3}, ordinals{1, 3}},
		"a new trainer delays the step": {ordinals{1, 2}, ordinals{1, 2, 4}, nil},
		"ten is not less than nine":     {ordinals{10, 9}, ordinals{9, 10}, ordinals{9, 10}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, s := stepsAt(t, "")
			staged(t, s, 0, tt.staged...)
			step, ok := s.complete(tt.runners, everyone, 0)
			var got ordinals
			for _, c := range step.Contributors {
				got = append(got, c.Ordinal)
				if c.Incarnation != uint64(c.Ordinal)*10 || c.Records != int(c.Ordinal) {
					t.Errorf("contributor %+v: differs from its stage", c)
				}
			}
			if ok != (tt.want != nil) || !reflect.DeepEqual(got, tt.want) {
				t.Fatalf("got %v, %v; want %v", got, ok, tt.want)
			}
			if ok && step.Version != 1 {
				t.Errorf("got version %d", step.Version)
			}
		})
	}
}

func TestStageAcceptsOnlyLastVersion(t *testing.T) {
	q, s := stepsAt(t, `{"version":5,"epoch":1,"contributors":[{"ordinal":1,"incarnation":10,"records":3}]}`)
	for name, tt := range map[string]struct {
		version uint64
		records int
		current bool
		words   string
	}{
		"late":                 {4, 3, false, ""},
		"of a later version":   {6, 3, false, "staged at version 6: expected at most 5"},
		"refused by a shard":   {5, 0, true, ""},
		"a negative number":    {5, -1, false, "staged -1 records"},
		"more than a step has": {5, 1 << 32, false, "expected 1 to 4294967295"},
		"of the last version":  {5, 3, true, ""},
		"once more":            {5, 3, true, ""},
		"the maximum":          {5, 1<<32 - 1, true, ""},
	} {
		current, err := s.stage(tt.version, Contributor{2, 20, tt.records})
		if current != tt.current || (err == nil) != (tt.words == "") || err != nil && !strings.Contains(err.Error(), tt.words) {
			t.Errorf("%s: got %v, %v", name, current, err)
		}
	}
	if err := q.RestoreStep([]byte(`{`)); err == nil || !strings.Contains(err.Error(), StepKey) {
		t.Errorf("damaged step: got %v", err)
	}
}

// A repeated question has the same answer.
func TestStageOfCommittedStepIsAnswered(t *testing.T) {
	q, s := stepsAt(t, "")
	staged(t, s, 0, 1, 2)
	step, ok := s.complete([]Ordinal{1}, everyone, 0)
	if !ok {
		t.Fatal("step: expected it to be complete")
	}
	q.setStep(step)
	for range 2 {
		for _, tt := range []struct {
			by       Ordinal
			version  uint64
			included bool
		}{{1, 0, true}, {2, 0, false}, {1, 1, false}} {
			if got := s.includes(tt.version, Contributor{Ordinal: tt.by, Incarnation: uint64(tt.by) * 10}); got != tt.included {
				t.Errorf("trainer %d at version %d: included %v", tt.by, tt.version, got)
			}
		}
	}
	if s.includes(0, Contributor{Ordinal: 1, Incarnation: 11}) {
		t.Error("another incarnation: expected no contributor")
	}
	if s.anyStaged() {
		t.Error("committed step: expected no staged gradients")
	}
}

// With backups, a step completes without the last trainers. A trainer that was late for several steps must be in the
// next.
func TestStepWithBackups(t *testing.T) {
	type ordinals = []Ordinal
	for name, tt := range map[string]struct {
		backups                      int
		staged, late, runners, wants ordinals
	}{
		"one missing trainer":              {1, ordinals{3, 1}, nil, ordinals{1, 2, 3}, ordinals{1, 3}},
		"two missing trainers":             {1, ordinals{1}, nil, ordinals{1, 2, 3}, nil},
		"all staged":                       {1, ordinals{1, 2, 3}, nil, ordinals{1, 2, 3}, ordinals{1, 2, 3}},
		"none staged":                      {5, nil, nil, ordinals{1, 2, 3}, nil},
		"one staged, five backups":         {5, ordinals{2}, nil, ordinals{1, 2, 3}, ordinals{2}},
		"a lost trainer is no contributor": {1, ordinals{3, 4}, nil, ordinals{1, 2, 3}, nil},
		"a late trainer is missing":        {1, ordinals{1, 3}, ordinals{2}, ordinals{1, 2, 3}, nil},
		"another trainer is missing":       {1, ordinals{1, 2}, ordinals{2}, ordinals{1, 2, 3}, ordinals{1, 2}},
		"a late trainer is lost":           {1, ordinals{1}, ordinals{2}, ordinals{1, 3}, ordinals{1}},
	} {
		t.Run(name, func(t *testing.T) {
			q, s := stepsAt(t, `{"version":9,"epoch":1,"contributors":[]}`)
			for _, o := range tt.late {
				for range mostLate {
					if current, err := s.stage(8, Contributor{Ordinal: o, Incarnation: 1, Records: 1}); current || err != nil {
						t.Fatalf("a stage of version 8: %v, %v", current, err)
					}
				}
			}
			staged(t, s, 9, tt.staged...)
			step, ok := s.complete(tt.runners, everyone, tt.backups)
			var got ordinals
			for _, c := range step.Contributors {
				got = append(got, c.Ordinal)
			}
			if ok != (tt.wants != nil) || !reflect.DeepEqual(got, tt.wants) {
				t.Fatalf("got %v, %v; want %v", got, ok, tt.wants)
			}
			for _, o := range tt.runners {
				q.trainers[o] = &trainer{ordinal: o}
			}
			if q.setStep(step); ok && slices.ContainsFunc(got, func(o Ordinal) bool { return s.late[o] > 0 }) {
				t.Error("contributor of the step: expected it to be no longer late")
			}
		})
	}
}

// A trainer that missed the answer to its stage receives it at any later version, also from a later leader. Otherwise
// the trainer would contribute the same mini-batch twice.
func TestStageOfEarlierStepIsAnswered(t *testing.T) {
	q, s := stepsAt(t, "")
	runners := []Ordinal{1, 2}
	for version := range uint64(4) {
		staged(t, s, version, 2)
		if version == 0 {
			staged(t, s, version, 1)
		}
		step, ok := s.complete(runners, everyone, 1)
		if !ok {
			t.Fatalf("version %d is not complete", version+1)
		}
		if q.setStep(step); version == 2 {
			q, s = stepsAt(t, string(step.Encode()))
		}
		for at, included := range []bool{true, false, false, false}[:version+1] {
			if got := s.includes(uint64(at), Contributor{Ordinal: 1, Incarnation: 10}); s.last.Version != version+1 || got != included {
				t.Errorf("at version %d: committed %d, included %v in version %d", version+1, s.last.Version, got, at+1)
			}
		}
	}
	staged(t, s, 4, 2)
	if step, _ := s.complete([]Ordinal{2}, everyone, 1); len(step.Earlier) > 0 {
		t.Errorf("trainer without a session: expected no earlier stages, found %v", step.Earlier)
	}
}

func everyone(Ordinal, uint64) bool { return true }

// A stage of an earlier incarnation does not count for the incarnation that runs under the same ordinal.
func TestStepLeavesOutIncarnationWithoutSession(t *testing.T) {
	_, s := stepsAt(t, "")
	if _, err := s.stage(0, Contributor{1, 10, 5}); err != nil {
		t.Fatal(err)
	}
	known := func(_ Ordinal, incarnation uint64) bool { return incarnation == 11 }
	if step, ok := s.complete([]Ordinal{1}, known, 0); ok {
		t.Errorf("step %+v: expected none", step)
	}
	if _, err := s.stage(0, Contributor{1, 11, 5}); err != nil {
		t.Fatal(err)
	}
	if step, ok := s.complete([]Ordinal{1}, known, 0); !ok || step.Contributors[0].Incarnation != 11 {
		t.Errorf("step %+v, %v: expected one of incarnation 11", step, ok)
	}
}
