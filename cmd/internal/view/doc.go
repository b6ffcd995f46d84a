// Package view implements the output of the commands that show a job: status, queues, tasks, trainers, and the progress of a run.
//
// Each type is made from a reply of the leader or from the stored state, has the fields of the JSON output, and writes itself as a table.
// The package sends no requests and reads no store.
package view
