// Package rendezvous decides which members form the ring of a job.
//
// A generation is one membership: its members in rank order. It never changes, except that members complete it and that it ends. [Decide] is a
// pure function of the time, the state and the settings. The caller stores [Decision.Ring] before a member receives it.
//
// # Guarantees
//
//   - Two generations with the same number have the same members, also if the leader changes.
//   - A generation has at least Config.Min and at most Config.Max members. Members that stay keep their relative order.
//   - A member that has completed is not forgotten: the ring closes only when all members of a generation have completed it.
//
// # Use
//
// master/ring keeps the state from the calls of members and the ends of pods. It calls Decide after each event, and after Decision.Rest.
package rendezvous
