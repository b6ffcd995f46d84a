package shard

import (
	"fmt"
	"time"

	"trainmaster/pserver/floats"
)

// PieceElements is the number of elements of a block in one step of the work: 16 KiB, so that update, copy and sum of a piece
// happen in the fastest cache.
const PieceElements = 4096

// Update identifies a gradient and its use.
type Update struct {
	Step    uint64  // of the trainer; a block applies each step once
	BasedOn uint32  // version of the block that the gradient was computed at
	Scale   float32 // factor of the learning rate
}

// Gradient identifies a gradient of a synchronous step. A shard stages it until a commit names its trainer.
type Gradient struct {
	Version  uint64 // version that it was computed at
	Records  uint32 // records of the mini-batch
	Sequence uint64 // of the frame; later frames replace earlier ones
	Arrived  time.Time

	Part, Parts uint32 // of the rows of a table, which come in several frames
}

// Result describes an executed push or pull.
type Result struct {
	Version   uint64 // of the block, after the call
	Duplicate bool   // The step was applied before.
}

// Sink takes the parameters of a block while the block is locked. The shard calls Begin once, then Put for pieces of at most
// [PieceElements] in order.
type Sink interface {
	Begin(r Result, elements int)
	// Put copies a piece and reports whether it is finite.
	Put(offset int, params []float32) (isFinite bool)
}

// Values are the elements of a request. If they are in shared memory, the trainer can change them at any time: a check there says
// nothing about the next read, so whatever is kept or applied is checked as copied. Otherwise the caller has checked that they are
// finite.
type Values struct {
	Floats []float32
	Piece  []float32 // memory for the copy of a piece; nil if Floats are not shared
}

// At returns the elements from lo to hi, at most [PieceElements], in memory that the trainer cannot change, and whether they are
// finite.
func (v Values) At(lo, hi int) (piece []float32, isFinite bool) {
	//guard:shared-gradient-copied
	if v.Piece == nil {
		return v.Floats[lo:hi], true
	}
	piece = v.Piece[:hi-lo]
	return piece, floats.CopyFinite(piece, v.Floats[lo:hi])
}

// CopyTo copies all elements and reports whether the copy is finite.
func (v Values) CopyTo(dst []float32) (isFinite bool) {
	if v.Piece == nil {
		copy(dst, v.Floats)
		return true
	}
	return floats.CopyFinite(dst, v.Floats)
}

// CheckScale checks a factor of the learning rate; 0 means 1.
func CheckScale(scale float32) (float32, error) {
	if scale == 0 {
		return 1, nil
	}
	if !(scale > 0) || scale-scale != 0 {
		return 0, fmt.Errorf("learning-rate scale is %v: expected a positive number, or 0 for 1", scale)
	}
	return scale, nil
}
