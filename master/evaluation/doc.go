// Package evaluation implements the rounds of an evaluation: when a round begins, which model is the best, and when the results end the
// job. It is a pure state machine.
//
// A round evaluates one model, which [Decide] pins when the round begins. At most one round is open. A trigger during a round is kept, and
// all of them together begin one next round.
//
// # Use
//
// The caller passes what it observes as an [Input]: with each commit, when a command arrives, and when the pass of a round has ended. Decide
// returns the next [State] and its decisions, each with a reason. The caller stores the state, encoded by [State.Encode], and the effects
// of the decisions in the transaction of the commit. A state is a value: if the commit fails, the caller keeps the previous one.
// The caller must not delete the models of [State.Spared].
//
// # Guarantees
//
//   - A decision is a function of (now, state, input). Encoding and decoding the state between two inputs changes no decision.
//   - A version, pass or time that was passed once does not trigger twice, also after a change of the leader. After a rollback, versions
//     count from the restored version on.
//   - The state is bounded: the newest [MaxHistory] rounds and at most [MaxKept] models.
//   - After a decision to end the job, no round begins.
package evaluation
