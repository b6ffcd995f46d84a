// Package trainercontrol implements the commands of the leader to trainers: calls of the gRPC service TrainerControl, and for trainers
// without an address the messages on their streams, see [Streams].
//
// # Guarantees
//
// A stop is sent after the commit of the dispatch that causes it, and names the dispatch that it ends. [Address] limits the calls
// of the leader to the host of the connection of a trainer, and to hosts of a list.
//
// # Failure behavior
//
// A call has a time limit, and a bounded number of calls is in progress. A stop that fails is not repeated: the reply to the next heartbeat
// with the task has it, also from the next leader. Without an answer about the progress, the task keeps its deadline. The task of an
// evaluation is offered each second until the trainer has accepted it or the round has ended. The next leader continues. Heartbeats of a
// trainer with an address have no evaluation task.
package trainercontrol
