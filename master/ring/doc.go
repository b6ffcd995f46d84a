// Package ring implements the component of a master that keeps the ring of a job: the rendezvous of its members. It collects the calls of
// members and the ends of pods, and asks [rendezvous.Decide]. It stores each decision with the task queue before a member receives it.
//
// # Guarantees
//
//   - A generation, its end and a completion are stored in the fenced transaction of the leader before a call returns or a stream sends them.
//   - The next leader continues the stored generation. Its members have 10 s to connect again.
//
// # Failure
//
// A decision that cannot be stored has no effect, and is repeated. Calls at a master that does not lead return [committer.ErrNotLeader].
package ring
