package evaluation

import (
	"errors"
	"fmt"
	"slices"

	"trainmaster/internal/jsonstate"
	"trainmaster/taskqueue"
)

// Key holds the encoded state of a job.
const Key = taskqueue.EvaluationKey

const (
	// Format is the format of an encoded state.
	Format = 1
	// MaxHistory is the number of rounds in the state. Earlier rounds are dropped.
	MaxHistory = 64
	// MaxModel is the largest size of the name of a model in bytes.
	MaxModel = 1024
	// MaxBytes is more than the size of any encoded state: 165 rounds with a model name of 6 bytes for each of its bytes.
	MaxBytes = 2 << 20
)

// Errors of [Decode].
var (
	ErrNewer   = errors.New("evaluation state of a newer format")
	ErrDamaged = errors.New("damaged evaluation state")
)

// State is the state of an evaluation. The zero value has no rounds.
type State struct {
	Begun   bool            `json:"begun,omitempty"` // Seen has values
	Seen    Seen            `json:"seen,omitzero"`
	Due     Due             `json:"due,omitzero"` // triggers since the last round began
	Rounds  uint64          `json:"rounds,omitempty"`
	Open    *Round          `json:"open,omitempty"`
	History []Round         `json:"history,omitempty"` // rounds that ended, newest last
	Kept    []Round         `json:"kept,omitempty"`    // best first
	Since   int             `json:"since,omitempty"`   // rounds with a figure since the best one
	Lowest  *float64        `json:"lowest,omitempty"`  // loss
	Final   bool            `json:"final,omitempty"`   // the round at the end of the job was triggered
	Stop    Stop            `json:"stop,omitempty"`
	Ended   taskqueue.Clock `json:"ended,omitempty"` // time of Stop
}

// Seen has the observations at the last triggers: the next ones count from there.
type Seen struct {
	Version uint64 `json:"version,omitempty"`
	Passes  uint64 `json:"passes,omitempty"`
	Time    uint64 `json:"time,omitempty"` // job clock
}

// Due has the reasons for the next round. A round is due if one is set.
type Due struct {
	Steps   bool `json:"steps,omitempty"`
	Passes  bool `json:"passes,omitempty"`
	Time    bool `json:"time,omitempty"`
	Command bool `json:"command,omitempty"`
	End     bool `json:"end,omitempty"`
	// Trainer is the name of a trainer whose own model is evaluated by a round of its own. "": none is requested.
	Trainer string `json:"trainer,omitempty"`
}

// ofJob returns the reasons for a round of the model of the job.
func (due Due) ofJob() Due {
	due.Trainer = ""
	return due
}

// Round is one evaluation of a model.
type Round struct {
	Number  uint64          `json:"number"` // from 1
	Version uint64          `json:"version,omitempty"`
	Model   string          `json:"model"`             // checkpoint set or path; "": of a trainer
	Trainer string          `json:"trainer,omitempty"` // whose own model it is. Such a round is not ranked, and ends no job
	Begin   taskqueue.Clock `json:"begin,omitempty"`
	End     taskqueue.Clock `json:"end,omitempty"`   // 0: open
	Score   *float64        `json:"score,omitempty"` // figure of Config.Best
	Loss    *float64        `json:"loss,omitempty"`  // figure of Config.Loss
}

// Stop is a reason to end the job.
type Stop string

// The reasons to end the job.
const (
	Continue      Stop = ""
	TargetReached Stop = "target-reached"
	NoProgress    Stop = "no-progress"
	Diverged      Stop = "diverged"
)

// Spared returns the models that must not be deleted: of the open round, and the best ones.
func (s *State) Spared() []string {
	var list []string
	if s.Open != nil && s.Open.Model != "" {
		list = append(list, s.Open.Model)
	}
	for _, r := range s.Kept {
		list = append(list, r.Model)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// Best returns the best round so far.
func (s *State) Best() (best Round, ok bool) {
	if len(s.Kept) == 0 {
		return Round{}, false
	}
	return s.Kept[0], true
}

var codec = jsonstate.Codec[State]{Format: Format, MaxBytes: MaxBytes, Newer: ErrNewer, Damaged: ErrDamaged}

// Encode returns the state as JSON. Equal states have equal bytes.
func (s State) Encode() []byte { return codec.Encode(s) }

// Decode reads an encoded state. It accepts only bytes that [State.Encode] writes.
func Decode(b []byte) (State, error) {
	s, err := codec.Decode(b)
	if err != nil {
		return State{}, err
	}
	if err := s.check(); err != nil {
		return State{}, fmt.Errorf("%w: %v", ErrDamaged, err)
	}
	return s, nil
}

// valid reports whether a round has a model, or a trainer.
func (r *Round) valid() bool {
	if r.Trainer != "" {
		return validModel(r.Trainer) && r.Model == "" && r.Score == nil && r.Loss == nil
	}
	return validModel(r.Model)
}

// check returns the first broken rule of a state.
func (s *State) check() error {
	switch {
	case len(s.History) > MaxHistory || len(s.Kept) > MaxKept || uint64(len(s.History)) > s.Rounds:
		return fmt.Errorf("expected at most %d rounds and %d kept ones of %d, found %d and %d", MaxHistory, MaxKept, s.Rounds, len(s.History), len(s.Kept))
	case s.Open != nil && (s.Open.Number != s.Rounds+1 || s.Open.End != 0 || !s.Open.valid()):
		return fmt.Errorf("open round: expected number %d with a model, found %d", s.Rounds+1, s.Open.Number)
	case s.Since < 0:
		return fmt.Errorf("rounds since the best one: expected 0 or more, found %d", s.Since)
	case s.Stop != Continue && s.Stop != TargetReached && s.Stop != NoProgress && s.Stop != Diverged:
		return fmt.Errorf("stop: found %q", s.Stop)
	}
	for i, r := range s.History {
		if want := s.Rounds - uint64(len(s.History)-1-i); r.Number != want || !r.valid() {
			return fmt.Errorf("history: expected round %d with a model, found %d", want, r.Number)
		}
	}
	for _, r := range s.Kept {
		if r.Score == nil || r.Number == 0 || r.Number > s.Rounds || !validModel(r.Model) {
			return fmt.Errorf("kept round %d: expected a round up to %d with a figure and a model", r.Number, s.Rounds)
		}
	}
	return nil
}
