// Package load is the load of the measurements: trainers in a closed loop without training, so the figures are the cost of a
// dispatch.
//
// One op of a trainer is a request that finishes its task and gets the next task. It counts if the queue counted the finish. An
// answer without a task is no op.
//
//	Start          all trainers join and get their first task, then loop
//	Measure        counts what is finished from now on, for a while, then stops the loops
//	Leave          all trainers leave in order
package load
