// Package sim runs whole jobs in virtual time, with faults. A seed decides each history: three
// masters, eight trainers, a modelled etcd and the network between them. The package checks
// invariants at every commit and every answer.
//
// # Production code
//
// The production code makes every decision:
//
//   - the queue (taskqueue)
//   - a term: recovery, batches, commits, read-backs, reloads, cuts and rollbacks (committer.Committer, pscontrol.Control)
//   - the job clock, the linger, the verdicts and redials of a standby (master/decide)
//   - the fenced transactions (etcdstore/fence)
//   - the session, retries and pauses of a client (trainer/session)
//   - the rows of parameter servers with the steps of each trainer, cuts and restores (pserver/table)
//   - in a quarter of the histories, the rounds of evaluation (rounds.Rounds); in half of these, a population
//     (strategy.Population)
//   - in a third of the histories, a sealer that moves ledger entries into files (ledger.Sealing); the
//     files are values of the modelled etcd
//
// # Model
//
//	trainer ──requests──▶ node ──transactions──▶ etcd
//	   ▲  connections that    ▲  requests that are lost,   one history of revisions;
//	   │  break, late copies  │  late, or not answered     leases on its own clock
//	   └──── watches, late ───┴──────── watches, late ─────┘
//	   └─pushes─▶ parameter servers ◀─cuts─┘ (of the node)
//
// The model replaces the code with goroutines and sockets by processes that block in virtual time
// (loop.go). One process runs at a time, so that a seed always gives the same history. A call
// without an answer is applied, applied later, or never applied. A paused machine keeps the
// messages that arrive and resumes after its lease has expired. Other tests cover real etcd,
// sockets and processes.
//
// # Invariants
//
// The type check reads the ledger as it is written. It also decodes the columns of the state with
// a reader of its own. For each commit:
//
//   - Only the holder of the lock writes it, and it follows the previous commit.
//   - The job clock advances within the limits of real time.
//   - Each task of an open pass has exactly one state: counted, live, set aside or to do.
//   - No task is counted twice in a pass. A finished task is never dispatched again or undone.
//   - No task is taken back before its deadline. No trainer is lost while the leader receives its
//     requests, unless it did not stop for a cut within 10 s.
//   - Set-aside tasks are listed, the state is small, and the ledger agrees with the state.
//
// Each answer is stored, and a request has one answer. After the last fault, the job ends within
// ten minutes of virtual time. Every task of every pass is then counted once or set aside.
//
// During faults, a caller of a leader receives an answer, or the term ends, within a minute of
// virtual time. A stopped master ends within a minute.
//
// After a crash of the leader at any step of the sealer, a reader finds each commit once, with its
// events.
//
// In a population, a decision follows from the figures of its generation and has its effect in the
// same commit. A decided model comes with one task at a time, until a task with it counts. A trainer
// has no value and no model that was not committed.
//
// A standby does not replace a running master that etcd and the standby can reach.
//
// In half of the histories, some trainers use plain connections, which do not join (plain.go). The
// session of a plain connection ends exactly when the connection ends. Its finish counts, also
// late, if its client trained the task. The client may reuse its reply variable.
//
// In histories of cuts, a committed cut contains each record of the counted tasks once, and the
// records before the base of the other tasks. It contains nothing else. One transaction names the
// checkpoint set and counts its cut. All files of the set exist while it is named. After a
// rollback, a server has exactly the committed records. Only the end of a term ends its cuts. A
// process dies between two messages of a cut: at random in these histories, and at each point in
// a separate test. Further tests combine that point with a second crash, a full etcd, a long pause
// of the process, or a leader that is cut off from etcd while a server dies.
//
// Synchronous histories have the same cuts and rollbacks. A step is committed before a server or
// trainer receives it. Each version of an epoch is committed once, with the gradients that were
// staged at the previous version. A mini-batch counts once, unless a rollback discards its step.
// Any leader reports to each trainer whether the committed step contains its gradients.
//
// In histories of evaluation, a round begins in the transaction of its decision, after the end of the round before, and keeps its model. It
// has the metrics of each counted task once. The job ends after a round of its last model.
//
// In histories of an online dataset, the files appear one after another. Each is appended once, in their order, also if a leader ends between
// the part and the commit of a segment. Each pass has the tasks of all files.
//
// A failed history prints its seed, its last events and the command that replays it.
package sim
