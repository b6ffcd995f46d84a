// Command soak runs one job on real processes for a given time. It injects a fault every few seconds. At the end it
// proves that no task was lost or counted twice, and that no process was stuck.
//
//	3 etcd members ◀─ a proxy each ─ 3 masters ◀─ a proxy for two ─ 5 processes of 4 trainers
//	      ▲  a proxy each
//	      └── peers
//
// The trainers use package trainer. They read their records, write each task to a journal before they report it, and
// train nothing. faults.go lists the faults: processes are killed, paused or stopped, connections are cut, answers are
// held back, and the store is slowed down. A seed decides the sequence of faults, targets and times. Their effects also
// depend on the timing of the run.
//
// # Checks
//
// No process ends unless a fault ends it, and a task finishes at least every stuckAfter. After the last fault, the
// masters restart with a number of passes, and the job must end. Then:
//
//   - `master verify` finds every task of every pass counted once, and the ledger consistent with the state.
//   - The ledger contains no finish twice, and each finish is in the journal of the trainer that it names.
//   - The goroutines, memory and open files of the master that survives all faults, and the size of etcd's database,
//     stay within bounds (flat.go).
//
// # Failure behavior
//
// If a check fails, soak keeps its directory with the journals and the log of every process, and prints the path. After
// Ctrl-C it stops all processes that it started. On Linux these processes also end if soak is killed.
package main
