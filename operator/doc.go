// Package operator implements the controller of TrainingJobs: it makes the Job of the master and what this Job needs, and mirrors the state of the
// job in the status.
//
// # Guarantees
//
//   - The controller stores nothing outside the API server: it can end at any time, and another process continues.
//   - Each object of a job is owned by its TrainingJob. When that is deleted, the garbage collection of the cluster deletes all of them, and the
//     pods of the workers and servers with the Job. The volume stays.
//   - An object of the same name that is not of this TrainingJob is never changed.
//
// # Failure
//
// An error of the API is retried with a pause, and an API server that is away ends no process. A running job does not need the controller: its master continues without it.
package operator
