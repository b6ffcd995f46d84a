// Package sim runs whole jobs in virtual time, each of them decided by a seed: three masters,
// eight trainers, a modelled etcd and the network between them, with faults, and checks
// invariants at every commit and every answer.
//
// # What is real
//
// Every decision is the production code's: the queue (taskqueue), a term's recovery, batches,
// commits, read-backs and roll-backs, its cuts and how it has a job go back (master.Driven), the
// clock, the linger, and what a standby judges and when it dials again (master/decide), the fenced transactions (etcdstore/fence), the
// client's session, repeats and pauses (trainer/session), and the rows of parameter servers with
// the steps of each trainer, the moment of a cut and what is restored of it (pserver/table).
// In every third history a sealer (ledger.Driven) moves ledger entries into files, which are values of
// the modelled etcd.
//
// # What is modelled
//
//	trainer ──requests──▶ node ──transactions──▶ etcd
//	   ▲  connections that    ▲  requests that are lost,   one history of revisions;
//	   │  break, late copies  │  late, or not answered     leases on its own clock
//	   └──── watches, late ───┴──────── watches, late ─────┘
//	   └─pushes─▶ parameter servers ◀─cuts─┘ (of the node)
//
// The shells with goroutines and sockets are restated, as processes that block in virtual
// time (loop.go); one of them runs at a time, so that a seed is a history. A call that is not
// answered may have been applied, may be applied later, or never. A machine that is paused
// keeps all that came meanwhile and wakes past its lease. Real etcd, sockets and processes
// are the business of other tests.
//
// # Invariants
//
// check reads the ledger as it is written and the columns of the state with a reader of its
// own, and says of each commit: only the holder of the lock wrote it; it follows the one
// before; the job clock is neither faster nor slower than time allows; each task of an open pass is counted, live, set
// aside or to do, and only one of them; no task is counted twice in a pass; nothing finished
// is handed out again or comes back; nothing is taken back before its time, and nobody lost
// who is heard; set-aside tasks are listed; the state is small; the ledger and the state
// agree. Of each answer: it is stored, and one request has one. And at the end: once the
// faults stop, the job ends within ten minutes of virtual time, with every task of every pass
// counted once or set aside.
//
// While faults go on: a caller of a leader gets an answer, or its term ends, within a minute of
// virtual time, and a master that is stopped ends within a minute.
//
// Of sealers: whatever step a leader died in, a reader finds each commit once, with its events.
//
// Of standbys: a master that runs, and that etcd and its standby can reach, is not deposed.
//
// In every other history some trainers are connections that do not join: netrpc's rules of a
// connection, restated (plain.go). Such a session ends with its connection and not before; what it
// finishes counts, also late, and was trained by its client, which may reuse its reply variable.
//
// Of histories of cuts: a committed cut has each record of what is counted once, the records before
// its base of what is not, and nothing else; a set is named in the transaction that counts its cut,
// and all of it is there, for as long as it is named; a server that went back has what was committed
// and nothing else; nothing but the end of a term ends its cuts. Somebody dies between any two
// messages of a cut: by chance in these histories, and one after the other in a test of its own.
//
// Of synchronous histories: a step is committed before any server or trainer learns of it; each version is committed once and has
// the gradients that were staged at the version before it; a mini-batch counts once; each trainer learns whether the committed step
// has its gradients, from any leader. Servers begin ahead of etcd in some of these histories, as after a loss of etcd.
//
// A history that fails prints its seed, its last events and the command that replays it.
package sim
