package shard

import (
	"errors"
	"fmt"

	"trainmaster/pserver/partition"
	"trainmaster/pserver/table"
)

// Reason classifies a refusal. It determines what the caller does next.
type Reason uint8

// The reasons.
const (
	Fenced       Reason = iota + 1 // A newer incarnation of the trainer has joined, or the trainer is retired.
	Moved                          // Another shard owns the block or slot, or the placement has changed.
	Frozen                         // The block or slot is about to move.
	Stale                          // The gradient was computed at an earlier version, or a later attempt has replaced it.
	NotYet                         // The shard has not reached the version.
	Full                           // Stages have no memory now.
	NoRoom                         // The gradients of one step exceed the memory of stages.
	NotClaimed                     // The caller does not hold the claim to initialize.
	NotReady                       // The shard waits for the leader.
	Changed                        // The trainer changed shared memory during the call.
	BadBatch                       // The batch of rows does not fit the table.
	NoParameters                   // The shard has no parameters.
	NoSet                          // The shard has no parameters, and no checkpoint set has any.
	OtherModel                     // The caller has another model or another number of shards.
)

// Refusal is the error of a request that the shard does not execute. It changes nothing further.
type Refusal struct {
	Reason  Reason
	Version uint64          // version of the shard, if the reason is about versions
	Retry   <-chan struct{} // closed when another attempt can succeed; nil if that is not known
	message string
}

// Refuse returns a refusal with a message.
func Refuse(reason Reason, format string, args ...any) *Refusal {
	return &Refusal{Reason: reason, message: fmt.Sprintf(format, args...)}
}

// At adds the version of the shard.
func (r *Refusal) At(version uint64) *Refusal {
	r.Version = version
	return r
}

// Until adds the channel that is closed when another attempt can succeed.
func (r *Refusal) Until(retry <-chan struct{}) *Refusal {
	r.Retry = retry
	return r
}

func (r *Refusal) Error() string { return r.message }

// refusalOf returns the refusal of an update of a trainer that a partition did not take.
func refusalOf(err error, t *Trainer) *Refusal {
	var frozen partition.ErrFrozen
	switch {
	case errors.Is(err, partition.ErrEnded):
		return t.refuse()
	case errors.Is(err, partition.ErrMoved):
		return Refuse(Moved, "%v", err)
	case errors.As(err, &frozen):
		return Refuse(Frozen, "%v", err).Until(frozen.Until)
	case errors.Is(err, table.ErrNotFinite):
		return Refuse(Changed, "%v", err)
	}
	return Refuse(BadBatch, "%v", err)
}
