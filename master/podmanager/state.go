package podmanager

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"trainmaster/internal/jsonstate"
	"trainmaster/taskqueue"
)

// Key holds the encoded state of a job.
const Key = taskqueue.PodsKey

const (
	// Format is the format of an encoded state.
	Format = 1
	// MaxBytes is more than the size of any encoded state.
	MaxBytes = 2 * MaxPods * (2*maxWords + 256)
)

// Errors of [Decode].
var (
	ErrNewer   = errors.New("state of pods of a newer format")
	ErrDamaged = errors.New("damaged state of pods")
)

// State is what a leader must know about the pods. The zero value is the state of a job that has created none.
type State struct {
	Goals map[Role]Goal `json:"goals,omitempty"`
	Slots []Slot        `json:"slots,omitempty"` // by role and index. An index without an entry is at its attempt 0
}

// Goal is the number of pods of a role.
type Goal struct {
	Given     int `json:"given"` // by the flag. If the flag of the next leader differs, its number is the goal
	Count     int `json:"count"`
	Annotated int `json:"annotated,omitempty"` // the number of an annotation that was applied last; 0: none
}

// Slot is the state of an index.
type Slot struct {
	Role    Role            `json:"role"`
	Index   int             `json:"index"`
	Attempt int             `json:"attempt,omitempty"`
	Charged int             `json:"charged,omitempty"` // relaunches at its cost
	Row     int             `json:"row,omitempty"`     // relaunches in a row, for the pause before the next
	Memory  int64           `json:"memory,omitempty"`  // bytes; 0: as configured
	Raised  bool            `json:"raised,omitempty"`  // in place
	Hung    bool            `json:"hung,omitempty"`    // the attempt is deleted because its trainer hangs
	After   taskqueue.Clock `json:"after,omitempty"`   // the attempt is not created before
	Done    Done            `json:"done,omitempty"`
	Reason  string          `json:"reason,omitempty"` // of the end of the last attempt
}

// Done is the reason why an index has no further attempt.
type Done string

// The reasons.
const (
	NotDone Done = ""
	HasDone Done = "completed"
	GivenUp Done = "given-up"
)

var codec = jsonstate.Codec[State]{Format: Format, MaxBytes: MaxBytes, Newer: ErrNewer, Damaged: ErrDamaged}

// Encode returns the state as JSON. Equal states have equal bytes.
func (s State) Encode() []byte { return codec.Encode(s) }

// Decode reads an encoded state. It accepts only bytes that [State.Encode] writes.
func Decode(b []byte) (State, error) {
	s, err := codec.Decode(b)
	if err != nil {
		return State{}, err
	}
	return s, s.check()
}

func (s State) check() error {
	for role, g := range s.Goals {
		if !slices.Contains(roles, role) || g.Given < 0 || g.Given > MaxPods || g.Count < 0 || g.Count > MaxPods || g.Annotated < 0 || g.Annotated > MaxPods {
			return fmt.Errorf("%w: goal of %q: expected 0 to %d pods, found %+v", ErrDamaged, role, MaxPods, g)
		}
	}
	for i, slot := range s.Slots {
		switch {
		case !slices.Contains(roles, slot.Role) || slot.Index < 0 || slot.Index >= MaxPods:
			return fmt.Errorf("%w: expected a pod of a role, found %q %d", ErrDamaged, slot.Role, slot.Index)
		case i > 0 && bySlot(s.Slots[i-1], slot) >= 0:
			return fmt.Errorf("%w: expected entries in order, found %s %d", ErrDamaged, slot.Role, slot.Index)
		case slot.Attempt < 0 || slot.Charged < 0 || slot.Row < 0 || slot.Memory < 0 || len(slot.Reason) > maxWords:
			return fmt.Errorf("%w: %s %d: expected no negative numbers and a reason of %d bytes at most", ErrDamaged, slot.Role, slot.Index, maxWords)
		case slot.Done != NotDone && slot.Done != HasDone && slot.Done != GivenUp:
			return fmt.Errorf("%w: %s %d: expected %s or %s, found %q", ErrDamaged, slot.Role, slot.Index, HasDone, GivenUp, slot.Done)
		}
	}
	return nil
}

func bySlot(a, b Slot) int {
	return cmp.Or(cmp.Compare(a.Role, b.Role), cmp.Compare(a.Index, b.Index))
}

// Slot returns the state of an index.
func (s State) Slot(r Role, index int) Slot {
	want := Slot{Role: r, Index: index}
	if i, ok := slices.BinarySearchFunc(s.Slots, want, bySlot); ok {
		return s.Slots[i]
	}
	return want
}

// set returns the state with another value of an index.
func (s *State) set(slot Slot) {
	i, ok := slices.BinarySearchFunc(s.Slots, slot, bySlot)
	switch {
	case ok:
		s.Slots[i] = slot
	case slot != Slot{Role: slot.Role, Index: slot.Index}:
		s.Slots = slices.Insert(s.Slots, i, slot)
	}
}

func (s *State) setGoal(r Role, g Goal) {
	if s.Goals == nil {
		s.Goals = map[Role]Goal{}
	}
	s.Goals[r] = g
}

// renew begins the index again with the next attempt.
func (s *Slot) renew() { *s = Slot{Role: s.Role, Index: s.Index, Attempt: s.Attempt + 1} }

func (s State) clone() State {
	return State{Goals: maps.Clone(s.Goals), Slots: slices.Clone(s.Slots)}
}
