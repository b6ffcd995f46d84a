// Package worker implements the agent of a member of a ring: it runs a command once for each generation, with the rank of each process in its
// environment.
//
// # Guarantees
//
//   - The command of a generation starts when all processes of the generation before have ended on this member.
//   - A member whose command failed is in no further generation before it has reported the failure.
//   - The loss of the master does not disturb the command. The agent continues with the next leader.
//
// # Failure
//
// If the command fails, the agent reports the failure and takes part in the next generation, unless its own failures exceed the limit. Failures
// that follow from the loss or the failure of another member are not counted.
package worker
