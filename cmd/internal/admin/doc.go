// Package admin implements the requests of commands to a job. It finds the leader by address, through etcd or by the directory of a run.
// It reads the stored state of a job without a leader.
//
// A [Leader] is looked up before each request, because it may change. If no master leads the job, the error is an [EndedError], a
// [StoppedError], or names the command that starts a master.
package admin
