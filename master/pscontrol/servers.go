package pscontrol

import (
	"context"

	"trainmaster/taskqueue"
)

// Servers are the parameter servers of a job, as its leader calls them. [None] is a job without parameter servers.
type Servers interface {
	// Begin fixes a cut on every shard. It returns [ErrNothingToCut] if there is nothing to save.
	Begin(ctx context.Context, of CutRequest) (Cut, error)
	// SetAt decodes the cut of a set.
	SetAt(set []byte) (SetAt, error)
	// Discard removes what was written for sets that are newer than the latest one, nil if there is none yet: they were
	// never finished.
	Discard(ctx context.Context, term uint64, latest []byte) error

	// CommitStep returns when every shard has taken the step, or when ctx ends.
	CommitStep(ctx context.Context, step taskqueue.Step) error

	// SetLearningRate sends a change of the learning rate to all registered servers of an asynchronous job. A late or repeated call is
	// harmless.
	SetLearningRate(ctx context.Context, term uint64, rate taskqueue.RateChange) error

	// States returns the states of the servers by index; nil for a job without servers. With an error, it returns those of the servers
	// that answered.
	States(ctx context.Context) ([]ServerState, error)
	// Rollback loads a set into all servers in a job epoch; without a set, it removes their parameters. A server that
	// already reached the epoch ignores the call. placed is the value of [PlacementKey], which assigns the blocks of
	// the set to servers; nil: blocks never moved.
	Rollback(ctx context.Context, term uint64, epoch uint32, set, placed []byte) error
	// Retire sends all registered servers the incarnation floor of a job: incarnations of its trainers below floor are
	// over, except the spared ones. A late or repeated call is harmless. A server refuses if it has seen a later term
	// or belongs to another job. No version after the given one contains gradients of a retired incarnation (nil:
	// unknown).
	Retire(ctx context.Context, term uint64, job [16]byte, floor uint64, spared []uint64, version *uint64) error

	// Resize returns stored with another goal; stored is nil if blocks never moved. It returns [ErrNoServers] if the job has no
	// servers. stored and next are values of [PlacementKey], also below.
	Resize(ctx context.Context, stored []byte, servers int) (next []byte, err error)
	// Plan returns the placement of the goal, once all servers of the goal are registered; nil: it is reached.
	Plan(ctx context.Context, stored []byte) (next []byte, err error)
	// Dismiss ends the servers that a placement does not need. epoch is the epoch of the job.
	Dismiss(ctx context.Context, term uint64, epoch uint32, stored []byte) error
	// SendPlacement sends the committed placement to all servers. It ends a migration that was begun.
	SendPlacement(ctx context.Context, term uint64, stored []byte) error
	// Move prepares the next step towards the goal: it freezes and copies some blocks. next is nil if nothing is left to move;
	// otherwise it must be committed, or the step never happened. left counts what remains after the step.
	Move(ctx context.Context, term uint64, stored []byte) (next []byte, left Left, err error)
	// Extent decodes how many servers a placement uses.
	Extent(stored []byte) (Extent, error)
	// Addresses returns the addresses of the servers by index, "" for an index without a server.
	Addresses(ctx context.Context) ([]string, error)
}

// CutRequest describes a cut to begin.
type CutRequest struct {
	Term   uint64
	Epoch  uint32                   // of the job
	Number func(last uint64) uint64 // of the cut, from the greatest number that any shard has seen
	// Latest is the set that the store names. In place of a server that is not registered the new set gets its part, from which the
	// next server starts. nil: all servers must be registered.
	Latest []byte
}

// SetAt describes the cut of a set.
type SetAt struct {
	Number   uint64
	JobID    string    // of the job whose servers wrote it, in hexadecimal digits
	Version  uint64    // of the parameters, in synchronous mode
	Position *Position // nil: it does not say
}

// ServerState is the state of a parameter server.
type ServerState struct {
	Present bool
	Ready   bool   // it has parameters
	Epoch   uint32 // of the job, to which this process was brought; 0: the process has just started
	LastCut uint64 // greatest number of a cut that the server has seen

	KeepsCheckpoints bool // it was started with a place for them
	WantsSet         bool // it has its first parameters, or it stops
	// Unrestored is why it waits without parameters: its checkpoint is damaged or missing; "": it does not.
	Unrestored string
	Overflow   string // its first value that is not finite; "": there is none
	// StageNeed is the size in bytes of the gradients of a trainer, with the most rows of tables that a trainer has staged so far: a
	// batch can have any number. StageLimit is --stage-bytes; 0: the server has no parameters, or is asynchronous.
	StageNeed, StageLimit uint64
	LearningRate          float32 // of the optimizer, before its schedule; 0: no parameters
	Address               string
	MemoryUsed            uint64 // working set of its container in bytes; 0: unknown
}

// None implements [Servers] for a job without parameter servers.
type None struct{}

var _ Servers = None{}

// Begin returns [ErrNothingToCut].
func (None) Begin(context.Context, CutRequest) (Cut, error) {
	return nil, ErrNothingToCut
}

// SetAt returns [ErrNothingToCut].
func (None) SetAt([]byte) (SetAt, error) { return SetAt{}, ErrNothingToCut }

// Discard does nothing.
func (None) Discard(context.Context, uint64, []byte) error { return nil }

// CommitStep does nothing.
func (None) CommitStep(context.Context, taskqueue.Step) error { return nil }

// SetLearningRate does nothing.
func (None) SetLearningRate(context.Context, uint64, taskqueue.RateChange) error { return nil }

// States returns no state.
func (None) States(context.Context) ([]ServerState, error) { return nil, nil }

// Rollback does nothing.
func (None) Rollback(context.Context, uint64, uint32, []byte, []byte) error { return nil }

// Retire does nothing.
func (None) Retire(context.Context, uint64, [16]byte, uint64, []uint64, *uint64) error { return nil }

// Resize returns [ErrNoServers].
func (None) Resize(context.Context, []byte, int) ([]byte, error) { return nil, ErrNoServers }

// SendPlacement does nothing.
func (None) SendPlacement(context.Context, uint64, []byte) error { return nil }

// Plan returns that the goal is reached.
func (None) Plan(context.Context, []byte) ([]byte, error) { return nil, nil }

// Dismiss does nothing.
func (None) Dismiss(context.Context, uint64, uint32, []byte) error { return nil }

// Move returns that nothing is left to move.
func (None) Move(context.Context, uint64, []byte) ([]byte, Left, error) { return nil, Left{}, nil }

// Extent returns [ErrNoServers].
func (None) Extent([]byte) (Extent, error) { return Extent{}, ErrNoServers }

// Addresses returns no address.
func (None) Addresses(context.Context) ([]string, error) { return nil, nil }
