// Package wire is what the master's net/rpc face and its Go clients agree on: the messages,
// the words of the errors, and a reader that bounds what it lets through to gob.
//
// The service is called RPCServer and is reached by rpc.DialHTTP. Two methods are the
// documented minimum, and a client that knows no more works:
//
//	ReportDataset(paths []string, dummy *int) error
//	GetTask(finished *taskqueue.Task, result *taskqueue.Task) error
//
// GetTask with &taskqueue.Task{} says that nothing is finished yet. A result with Index -1
// and no chunks says that there is nothing to do yet: ask again. When the job is over the
// error begins with "job finished". Declare the result inside the loop: gob leaves the zero
// fields of a reused one as they were. A client that forgets it gets tasks again that it
// trained already; it can never make a wrong count.
//
// Clients that join (Join, Next, TaskFailed, Heartbeat, Leave, RequestSaveModel, Staged, and with
// explicit commits LastStep, Flushed, Commit, Rollback) may
// repeat every request after a reconnect, also to another master, and get the same answer.
package wire

// Service is the name that the methods are registered under.
const Service = "RPCServer"
