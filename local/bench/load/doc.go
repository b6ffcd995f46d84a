// Package load is the load of the measurements: trainers in a closed loop that train
// nothing, so that all that is left is what a task costs to hand out.
//
// One op of a trainer is one request that finishes the task that it holds and gets the next
// one. It counts when the queue counted the finish; an answer without a task is no op.
//
//	Start          all trainers join and get their first task, then loop
//	Measure        counts what is finished from now on, for a while, then stops the loops
//	Leave          all trainers leave in order
package load
