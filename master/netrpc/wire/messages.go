package wire

import (
	"time"

	"trainmaster/dataset"
	"trainmaster/taskqueue"
)

// Trainer is what Join gave to a trainer; every later request carries it.
type Trainer struct {
	Ordinal     taskqueue.Ordinal
	Incarnation uint64
}

// JoinRequest begins a session. ID names the trainer: a second one with the same ID takes
// the place of the first. A master of another job than Job does not lead; "" is any job.
type JoinRequest struct {
	ID      string
	Address string
	Job     string
	Control string // address of the service TrainerControl: ":port" or "ip:port"; "": there is none
	Window  int    // tasks that the trainer wants to hold; 0: 2
}

// JoinReply is the new session.
type JoinReply struct {
	Trainer
	JobID    [16]byte
	Sync     bool          // gradients are applied in synchronous steps
	Explicit bool          // tasks count with the commit of a step
	Cuts     bool          // cuts of the master: trainers quiesce for them
	Epoch    uint32        // of the job
	TTL      time.Duration // a trainer that is silent for longer is lost; 0: the master does not say

	Window int // tasks that the trainer may hold. 0: 2, and the master does not know NextRequest.Most
}

// NextRequest reports the finished tasks and may request a task.
type NextRequest struct {
	Trainer
	Seq        uint64 // number of this request, from 1; a repeat has the same
	Ack        uint64 // all requests below are answered
	Held       []taskqueue.Token
	Finished   []taskqueue.Result
	Want       bool
	SeenCommit uint64 // highest commit number seen in a reply
	JobID      [16]byte
	Progress   taskqueue.Progress
	Epoch      uint32          // epoch of the trainer, with explicit commits
	SeenProof  []byte          // CommitProof of the reply that SeenCommit is of: without it SeenCommit is ignored
	Accepts    taskqueue.Kinds // of tasks; 0: training
	Most       int             // tasks wanted in one answer; 0: one. Of a trainer with JoinReply.Window
}

// NextReply is the answer to a NextRequest. If a task was requested and there is none (Task.Index -1), the trainer asks
// again.
type NextReply struct {
	Task     taskqueue.Task
	Stamps   []dataset.Stamp // of the files of Task.Chunks, in the order of their first chunk
	Finishes []taskqueue.FinishStatus
	Commit   uint64
	Base     int64             // of Task: the record to begin with
	WaitFor  taskqueue.WaitFor // why there is no task yet

	CommitProof []byte // that a master of the job said Commit: echoed with it

	Round taskqueue.Round // of an evaluation task: the model to evaluate

	HyperParameters map[string]float64 // of a training task; nil: the job has no strategy

	From taskqueue.ModelSource // of a training task: the model to begin with; zero: the own model of the trainer

	More []FurtherTask // further training tasks, if Most is above 1
}

// FurtherTask is a further task of an answer.
type FurtherTask struct {
	Task   taskqueue.Task
	Stamps []dataset.Stamp
	Base   int64
}

// TaskFailedRequest gives back a task that could not be trained. A client that did not join
// leaves Trainer zero and fills Index, and Token if it knows it.
type TaskFailedRequest struct {
	Trainer
	Index int
	Token taskqueue.Token
	Error string
}

// The answer to a heartbeat is a sum of these numbers and of HeartbeatStop of each task to stop.
const (
	HeartbeatGoOn     = 0
	HeartbeatDraining = 1 // a task that is fetched and not begun was given to another: drop it
)

// HeartbeatStop is a part of the answer: the trainer must give up HeartbeatRequest.Held[i]. It is 0 if the answer has no room for i: list other tasks first in
// the next heartbeat.
func HeartbeatStop(i int) int {
	if i > maxStop {
		return 0
	}
	return 2 << i
}

const maxStop = 61

// HeartbeatRequest keeps a session alive; the tasks in Moving made progress.
type HeartbeatRequest struct {
	Trainer
	Moving   []taskqueue.Token
	Progress taskqueue.Progress
	Held     []taskqueue.Token // all tasks that the trainer has and did not report
}

// LeaveRequest ends a session. Its tasks return to the queue.
type LeaveRequest struct {
	Trainer
	Lost bool // the process that trains has died: its running task is charged with a loss
}

// SaveModelRequest asks to be the one trainer that saves the model.
type SaveModelRequest struct{ Trainer }

// SaveModelReply says whether the caller was elected.
type SaveModelReply struct{ Elected bool }

// StagedRequest reports that all parameter servers hold the caller's gradients, computed at
// Version from Records records; 0: some refused them, as that version is past.
type StagedRequest struct {
	Trainer
	Version uint64
	Records int
	Epoch   uint32 // that the caller goes by; 0: any
}

// StagedReply has the last committed version: Version again means "not yet, ask again".
// Included says that the gradients are in Version+1.
type StagedReply struct {
	Committed uint64
	Included  bool
}
