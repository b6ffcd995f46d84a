// Package trainer implements the Go client of a master for training programs. The client finds
// the leader, keeps a session, takes tasks, reads their records and reports finished tasks.
//
//	client, err := trainer.Join(ctx, trainer.Config{ID: "t0", Locate: trainer.At("127.0.0.1:8080")})
//	...
//	defer client.Close()
//	err = client.ReportDataset(ctx, []string{"/data/train-*"})
//	var done *taskqueue.Task
//	for {
//		task, err := client.Next(ctx, done)
//		if err == io.EOF || err == trainer.ErrDrained {
//			break // the job has ended, or an operator drained this trainer
//		}
//		...
//		for record, err := range client.Records(task) { ... }
//		done = task
//	}
//
// # Guarantees
//
// A failover, a restart or an unreachable master causes a pause, never an error. The client
// repeats a request with the same number until a leader answers. A repeated request has no
// second effect. Calls return only the end of ctx, the failure of the job, a job with another
// dataset, ErrDrained and ErrSessionLost.
//
// The calls go over gRPC, or over net/rpc with Config.Protocol. Both have the same guarantees.
//
// The client fetches the next task during training, so Next usually returns immediately.
//
// # Stops
//
// If a task times out and another trainer has received it, the master stops it. UntilStopped returns a context that ends then. A
// trainer that does not use it trains the task in vain: its finish is "already counted".
//
// # Explicit commits
//
// In a job with explicit commits the trainers of a ring make its steps together, and save the
// model at some steps. After a restart, LastStep returns the step to load. In the loop, Applied
// reports the records of a task that a step used. Checkpoint saves a step in the only order
// without loss or repetition: save, flush, commit, publish. After a loss one member of the new
// ring calls Rollback; the others get ErrRolledBack and call LastStep. Records then begin, in
// order, where the loaded step ends.
//
// # Failure behavior
//
// A trainer that is silent for longer than its session lasts gets ErrSessionLost, and its
// tasks are dispatched to other trainers. It must join again, as a new incarnation. A task that
// it has finished still counts, unless another trainer finished the task first.
package trainer
