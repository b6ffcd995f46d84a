// Package wire implements the protocol between the net/rpc interface of the master and its Go clients: the messages, the
// error texts, and a reader that bounds the input of gob.
//
// The service is called RPCServer and is reached by rpc.DialHTTP. Two methods are the documented minimum and are
// sufficient for a client:
//
//	ReportDataset(paths []string, dummy *int) error
//	GetTask(finished *taskqueue.Task, result *taskqueue.Task) error
//
// GetTask with &taskqueue.Task{} means that no task is finished. A result with Index -1 and no chunks means that no
// task is available: ask again. When the job has ended, the error begins with "job finished". Declare the result inside
// the loop, because gob keeps the old value of a field that is zero in the message. A client with a reused result gets
// tasks again that it has already trained; the counts stay correct.
//
// Clients that join (Join, Next, TaskFailed, Heartbeat, Leave, RequestSaveModel, Staged, and with explicit commits
// LastStep, Flushed, Commit, Rollback) may repeat every request after a reconnect, also to another master, and get the
// same answer.
package wire

// Service is the name that the methods are registered under.
const Service = "RPCServer"
