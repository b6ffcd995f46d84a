package wire

import "fmt"

// Code is the reason of a refusal, which determines the next action of the sender.
type Code uint32

// The codes. Numbers are part of the format and are never given a new meaning.
const (
	Malformed     Code = 1  // the frame breaks the format; the connection is closed
	BadChecksum   Code = 2  // the bytes were damaged in transit; the connection is closed, send again
	NoSuchBlock   Code = 3  // the shard does not hold this block: an error of the caller
	BadLength     Code = 4  // the payload does not fit the block: an error of the caller
	BadDType      Code = 5  // the element type is not the block's: an error of the caller
	NotFinite     Code = 6  // the gradient holds NaN or Inf: an error of the caller, nothing was changed
	Resync        Code = 7  // the shard was restarted: say hello again, pull again, continue
	Stale         Code = 8  // the gradient's version is past: pull the version in the header, compute again
	Uninitialized Code = 9  // the shard has no parameters
	OtherModel    Code = 10 // the sender's placement table is not the shard's
	Fenced        Code = 11 // a newer incarnation of this trainer has said hello: this incarnation is fenced
	WrongMode     Code = 12 // push at a synchronous server, or stage at an asynchronous one
	Busy          Code = 13 // no memory for more stages now: send again later
	Wait          Code = 14 // the requested version is not committed yet: ask again
	WrongShard    Code = 15 // the address belongs to another shard now: look it up again
	Stopping      Code = 16 // the server shuts down: look for its successor
	NotClaimed    Code = 17 // put without the claim to initialize: ask for it again
	NoSuchTable   Code = 18 // the model has no such table: an error of the caller
	NoSuchSlot    Code = 19 // the shard does not hold this slot of the table: an error of the caller
	BadRows       Code = 20 // the payload is no batch of rows of this table: an error of the caller
	Moved         Code = 21 // the block, a slot of the rows, or the placement, has moved on: learn the table, send again under the same step
	NoRoom        Code = 22 // the gradients of a step do not fit --stage-bytes, and nothing frees memory before it: an error of the operator
	Failed        Code = 23 // the server failed on this request, see its log; the connection is closed, send again at most 3 times
)

var codeNames = [...]string{
	Malformed: "malformed", BadChecksum: "bad checksum", NoSuchBlock: "no such block", BadLength: "bad length",
	BadDType: "bad dtype", NotFinite: "not finite", Resync: "resync", Stale: "stale", Uninitialized: "uninitialized",
	OtherModel: "other model", Fenced: "fenced", WrongMode: "wrong mode", Busy: "busy", Wait: "wait",
	WrongShard: "wrong shard", Stopping: "stopping", NotClaimed: "not claimed",
	NoSuchTable: "no such table", NoSuchSlot: "no such slot", BadRows: "bad rows", Moved: "moved", NoRoom: "no room", Failed: "failed",
}

func (c Code) String() string {
	if c >= Malformed && int(c) < len(codeNames) {
		return codeNames[c]
	}
	return fmt.Sprintf("code %d", uint32(c))
}

// Fatal reports whether the connection is closed after this answer.
func (c Code) Fatal() bool {
	switch c {
	case Malformed, BadChecksum, Fenced, WrongShard, OtherModel, Uninitialized, Stopping, Failed:
		return true
	}
	return false
}

// Fault is a refusal in an error reply: Code in the argument,
// Message as the payload. Version is the version in the reply's header.
type Fault struct {
	Code    Code
	Message string
	Version uint32
}

// MaxMessage bounds the text of an error reply in bytes.
const MaxMessage = 1024

// Faultf makes a Fault.
func Faultf(code Code, format string, args ...any) *Fault {
	return &Fault{Code: code, Message: fmt.Sprintf(format, args...)}
}

func (f *Fault) Error() string { return f.Code.String() + ": " + f.Message }
