// Package trainercontrol implements the commands of the leader to trainers that serve the gRPC service TrainerControl.
//
// # Guarantees
//
// A stop is sent after the commit of the dispatch that causes it, and names the dispatch that it ends. [Address] limits the calls
// of the leader to the host of the connection of a trainer, and to hosts of a list.
//
// # Failure behavior
//
// A call has a time limit, and a bounded number of calls is in progress. A call that fails is not repeated: the trainer receives the same
// command in the reply to its next heartbeat, also from the next leader.
package trainercontrol
