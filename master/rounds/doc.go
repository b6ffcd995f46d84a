// Package rounds implements the component of a master that evaluates a job: it observes the committed state, asks [evaluation.Decide],
// and submits each decision to the task queue.
//
// # Guarantees
//
//   - A decision is stored in the transaction that begins its round or ends the job, with the record of the round. After a failover, the
//     next leader continues the open round and makes the same decisions.
//   - A round is of one model. With parameter servers this is a checkpoint set, which is taken when the round begins and is not removed
//     while the round is open or the model is among the best. Without parameter servers it is the newest model of a training result.
//   - Training does not wait for a round. Only the end of the job waits for the last round.
//
// # Failure
//
// A decision that the store refuses is made again after a pause. If no checkpoint set can be taken, the round is of the newest set.
package rounds
