package taskqueue

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// SetSpec is the use of a dataset in a job. A job can have several datasets, each with a name.
//
// Training datasets make the job: it ends when the last pass of each has ended, and fails if a pass counts nothing. Explicit commits,
// ranks and synchronous steps are about their tasks only. A prediction dataset also keeps the job open; its tasks are dispatched when all training has ended. A pass of an evaluation dataset
// begins with [BeginRound]; only while it is open does the dataset keep the job open. Evaluation and prediction datasets never fail or
// pause the job, and their finishes count immediately.
type SetSpec struct {
	Name    string // 1 to 63 letters, digits, "-", "_" and "."; "": the name of the kind
	Kind    Kind
	Passes  int // 0: Options.Passes for training, 1 for prediction. Not for evaluation
	Weight  int // share of the dispatches among the datasets of the kind, 1 to MaxWeight; 0: 1
	Shuffle bool
	Seed    uint64
	Online  bool // grows while it is trained: AppendSegment adds tasks until CloseSet. Of training only
}

// The limits of a SetSpec, and of the number of datasets of a job.
const (
	MaxWeight  = 1_000_000
	MaxSets    = 64
	maxSetName = 63
)

// ErrBadSet is returned for an invalid SetSpec.
var ErrBadSet = errors.New("invalid dataset")

// WithDefaults returns the spec with the default of each field that is zero.
func (s SetSpec) WithDefaults() SetSpec {
	if s.Name == "" {
		s.Name = s.Kind.String()
	}
	if s.Weight == 0 {
		s.Weight = 1
	}
	return s
}

// Validate returns an error of the first invalid field.
func (s SetSpec) Validate() error {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."
	switch {
	case s.Kind >= kinds:
		return fmt.Errorf("%w: kind: expected 0 to %d, found %d", ErrBadSet, kinds-1, s.Kind)
	case len(s.Name) > maxSetName || strings.Trim(s.Name, letters) != "":
		return fmt.Errorf("%w: name: expected at most %d letters, digits, \"-\", \"_\" and \".\", found %q", ErrBadSet, maxSetName, clip(s.Name))
	case s.Passes < 0 || s.Passes > 0 && s.Kind == Evaluation:
		return fmt.Errorf("%w: passes: expected 0 (the default) or more, and 0 for an evaluation dataset, found %d", ErrBadSet, s.Passes)
	case s.Online && s.Kind != Training:
		return fmt.Errorf("%w: online: expected it of a training dataset only, found %s", ErrBadSet, s.Kind)
	case s.Weight < 0 || s.Weight > MaxWeight:
		return fmt.Errorf("%w: weight: expected 1 to %d, or 0 (the default, 1), found %d", ErrBadSet, MaxWeight, s.Weight)
	}
	return nil
}

// Kinds is a set of kinds: bit k stands for kind k. The zero value means training only.
type Kinds uint8

// OtherKinds is a set of kinds without tasks: kinds that this version does not know.
const OtherKinds Kinds = 1 << 7

// KindsOf returns a set of kinds.
func KindsOf(list ...Kind) (k Kinds) {
	for _, kind := range list {
		k |= 1 << kind
	}
	return k
}

func (k Kinds) has(kind Kind) bool { return k == 0 && kind == Training || k&(1<<kind) != 0 }

// passes returns how many passes a dataset has; 0: no limit.
func (q *Queue) passes(s *set) Pass {
	switch {
	case s.passes > 0:
		return s.passes
	case s.kind == Evaluation:
		return 0
	case s.kind == Prediction:
		return 1
	}
	return Pass(q.opt.Passes)
}

// countsWithStep reports whether a finish of a task of the set counts with the commit of its step.
func (q *Queue) countsWithStep(s *set) bool {
	//guard:evaluation-counts-immediately
	return q.explicit != nil && s.kind == Training
}

// keepsJobOpen reports whether the job cannot end yet because of the set.
func (s *set) keepsJobOpen() bool {
	if s.kind == Evaluation {
		return len(s.open) > 0
	}
	return !s.ended
}

// mayEnd reports whether nothing keeps the job open.
func (q *Queue) mayEnd() bool {
	//guard:job-end-is-held
	if q.opt.HoldEnd || !q.passesDone() {
		return false
	}
	for _, s := range q.sets {
		//guard:open-round-keeps-job-open
		if s.keepsJobOpen() {
			return false
		}
	}
	return true
}

// passesDone reports whether all training and prediction datasets have ended. All expected datasets are registered then.
func (q *Queue) passesDone() bool {
	work := false
	for _, s := range q.sets {
		if s.kind == Evaluation {
			continue
		}
		if !s.ended {
			return false
		}
		work = true
	}
	//guard:job-waits-for-its-sets
	if !q.Registered() {
		return false
	}
	return work
}

// Registered reports whether all datasets of Options.Sets are registered.
func (q *Queue) Registered() bool {
	return !slices.ContainsFunc(q.opt.Sets, func(name string) bool { return q.named(name) == nil })
}

func (q *Queue) named(name string) *set {
	for _, s := range q.sets {
		if s.name == name {
			return s
		}
	}
	return nil
}

// Set returns the number of a dataset.
func (q *Queue) Set(name string) (set int, ok bool) {
	if s := q.named(name); s != nil {
		return s.id, true
	}
	return 0, false
}

// trained reports whether all training datasets have ended.
func (q *Queue) trained() bool {
	return q.Registered() && !slices.ContainsFunc(q.sets, func(s *set) bool { return s.kind == Training && !s.ended })
}

// nextSet returns the dataset to pick from: of evaluation first, then of training, and when all training has ended, of prediction. tried has the datasets without a
// task for the trainer. Among the datasets of a kind, smooth weighted round-robin chooses, with which nginx shares requests among
// servers: each dataset with a task earns its weight, and the richest pays the sum of these weights. A dataset without a task
// keeps its balance.
func (q *Queue) nextSet(accepts Kinds, tried *[MaxSets]bool) *set {
	for _, kind := range [...]Kind{Evaluation, Training, Prediction} {
		//guard:kinds-that-the-trainer-accepts
		if !accepts.has(kind) {
			continue
		}
		//guard:prediction-after-training
		if kind == Prediction && !q.trained() {
			continue
		}
		var best *set
		for _, s := range q.sets {
			if s.kind == kind && !tried[s.id] && q.hasTask(s) && (best == nil || s.credit+s.weight > best.credit+best.weight) {
				best = s
			}
		}
		if best != nil {
			return best
		}
	}
	return nil
}

// pay moves credit from a dataset with a dispatched task to the other datasets that have one.
func (q *Queue) pay(from *set, tried *[MaxSets]bool) {
	for _, s := range q.sets {
		//guard:idle-set-earns-nothing
		if s != from && s.kind == from.kind && !tried[s.id] && q.hasTask(s) {
			s.credit += s.weight
			from.credit -= s.weight
		}
	}
}

// hasTask reports whether a task of the set may be dispatched.
func (q *Queue) hasTask(s *set) bool {
	return s.retry > 0 || len(s.open) > 0 && s.cursor < s.tasks && q.roomToDispatch(s) || q.opt.Speculate && len(s.byKey) > 0
}
