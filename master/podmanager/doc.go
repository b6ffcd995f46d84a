// Package podmanager decides which pods of a job are created, replaced and deleted.
//
// [Plan] is pure: it compares the stored [State] with the observed pods, and returns the next state and the actions that follow from it. The
// caller stores the state first, in the fenced transaction of the leader, and then executes the actions. All actions follow from the state
// and the observation, so an action that fails, or whose answer is lost, is in the next plan again.
//
// # Guarantees
//
//   - An index has one attempt at a time. The next attempt is created after the pod of the previous attempt has ended or is lost.
//   - The name of a pod is JOB-ROLE-INDEX-ATTEMPT. A create that is repeated finds the pod of the first create. A delete carries the UID.
//   - A pod of an earlier attempt, as a deposed leader can create it late, is deleted.
//   - No index is lost: each index below the goal has a pod, is about to get one, has completed, or is given up with a reason.
//
// # Failure
//
// [Decode] accepts only bytes that [State.Encode] writes. A pod with a higher attempt than the state, as after the loss of the state, moves the
// state to its attempt.
package podmanager
