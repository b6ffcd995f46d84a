package wire

import "trainmaster/taskqueue"

// The messages of explicit commits. taskqueue.StepFlushed and the other step events describe their effect.

// LastStepRequest asks which step to load.
type LastStepRequest struct {
	Trainer
	Epoch uint32 // that the caller goes by; 0: any
}

// CutWatchRequest waits until a cut waits for the caller: Place.Round, once Done.
type CutWatchRequest struct{ Trainer }

// FlushedRequest says that the caller saved its part of a step.
type FlushedRequest struct {
	Trainer
	Generation uint64
	Step       uint64
	Positions  []taskqueue.TaskPosition
}

// StepRequest commits a step (Commit), or begins a generation from it (Rollback).
type StepRequest struct {
	Trainer
	Generation uint64
	Step       uint64
}

// StepReply is where the steps stand. Done is false when a commit still waits for others: ask
// again.
type StepReply struct {
	Place taskqueue.StepPlace
	Done  bool
}
