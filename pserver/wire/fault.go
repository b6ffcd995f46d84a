package wire

import "fmt"

// Code is the reason of a refusal, which determines the next action of the sender.
type Code uint32

// The codes. Numbers are part of the format and are never given a new meaning.
const (
	Malformed     Code = 1  // The frame breaks the format. The connection is closed.
	BadChecksum   Code = 2  // The bytes were damaged in transit. The connection is closed, send again.
	NoSuchBlock   Code = 3  // The shard does not hold this block: an error of the caller.
	BadLength     Code = 4  // The payload does not fit the block: an error of the caller.
	BadDType      Code = 5  // The element type is not the block's: an error of the caller.
	NotFinite     Code = 6  // The gradient holds NaN or Inf. Nothing was changed: an error of the caller.
	Resync        Code = 7  // The shard was restarted: say hello again, pull again, continue.
	Stale         Code = 8  // The gradient's version is past: pull the version in the header and compute again.
	Uninitialized Code = 9  // The shard has no parameters.
	OtherModel    Code = 10 // The sender's placement table is not the shard's.
	Fenced        Code = 11 // A newer incarnation of this trainer has connected. This incarnation must stop.
	WrongMode     Code = 12 // Push at a synchronous server, or stage at an asynchronous one.
	Busy          Code = 13 // No memory for more stages now: send again later.
	Wait          Code = 14 // The requested version is not committed yet: ask again.
	WrongShard    Code = 15 // The address belongs to another shard or job now: look it up again.
	Stopping      Code = 16 // The server shuts down: look for its successor.
	NotClaimed    Code = 17 // Put without the claim to initialize: request the claim again.
	NoSuchTable   Code = 18 // The model has no such table: an error of the caller.
	NoSuchSlot    Code = 19 // The shard does not hold this slot of the table: an error of the caller.
	BadRows       Code = 20 // The payload is no batch of rows of this table: an error of the caller.
	Moved         Code = 21 // The block, a slot of the rows, or the placement has changed: load the table and send again under the same step.
	NoRoom        Code = 22 // The gradients of a step exceed --stage-bytes, and no commit can free memory: an error of the operator.
	Failed        Code = 23 // The server failed on this request, see its log. The connection is closed, send again at most 3 times.
	NoSet         Code = 24 // The shard has no parameters, and the job has no checkpoint set yet, so no update is lost: initialize again.
)

var codeNames = [...]string{
	Malformed: "malformed", BadChecksum: "bad checksum", NoSuchBlock: "no such block", BadLength: "bad length",
	BadDType: "bad dtype", NotFinite: "not finite", Resync: "resync", Stale: "stale", Uninitialized: "uninitialized",
	OtherModel: "other model", Fenced: "fenced", WrongMode: "wrong mode", Busy: "busy", Wait: "wait",
	WrongShard: "wrong shard", Stopping: "stopping", NotClaimed: "not claimed",
	NoSuchTable: "no such table", NoSuchSlot: "no such slot", BadRows: "bad rows", Moved: "moved", NoRoom: "no room", Failed: "failed", NoSet: "no set",
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
	case Malformed, BadChecksum, Fenced, WrongShard, OtherModel, Uninitialized, Stopping, Failed, NoSet:
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
