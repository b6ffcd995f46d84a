// Package arena shares the parameters and gradients of a training process in another language with its agent, and exchanges them with the
// parameter servers.
//
// The arena is one memory that both processes map. No array goes through their socket: the training process writes gradients into the
// arena, the agent sends them to the servers and writes the parameters of the reply there. docs/formats/agent.md has the layout and the operations.
//
// An operation outlives the request that began it. A request can give up, as after its time limit; the same request again waits for
// the same operation, so a push is not applied twice.
package arena
