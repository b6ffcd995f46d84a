// Package trainer is the Go client of a master, for programs that train: it finds the
// leader, keeps a session, takes tasks, reads their records and says what is finished.
//
//	client, err := trainer.Join(ctx, trainer.Config{ID: "t0", Locate: trainer.At("127.0.0.1:8080")})
//	...
//	defer client.Close()
//	err = client.ReportDataset(ctx, []string{"/data/train-*"})
//	var done *taskqueue.Task
//	for {
//		task, err := client.Next(ctx, done)
//		if err == io.EOF || err == trainer.ErrDrained {
//			break // the job is over, or an operator lets this trainer go
//		}
//		...
//		for record, err := range client.Records(task) { ... }
//		done = task
//	}
//
// # Guarantees
//
// A master that fails over, restarts or cannot be reached costs a pause, never an error:
// requests are repeated with the same number until they are answered, by whichever master
// leads, and a repeated one has no second effect. Only the end of ctx, a job that failed or
// was begun with another dataset, ErrDrained and ErrSessionLost are returned.
//
// While a task is trained the next one is fetched, so that Next usually returns at once.
//
// # Explicit commits
//
// In a job of explicit commits the trainers of a ring make its steps together, and save the
// model at some of them. A restart begins with LastStep: which step to load. In the loop, Applied
// says which step took how many records of a task, and Checkpoint saves a step in the one order
// that loses and doubles nothing: save, flush, commit, publish. After a loss one member of the
// new ring calls Rollback, the others hear ErrRolledBack and call LastStep. Records, in their
// order, then begin where the loaded step ends.
//
// # Failure behaviour
//
// A trainer that was silent for longer than its session lasts gets ErrSessionLost: its
// tasks were given to others. It joins again, as a new incarnation; what it finished
// meanwhile still counts if nobody else was faster.
package trainer
