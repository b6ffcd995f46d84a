// Package master is the application between the faces (master/netrpc, master/grpcapi)
// and the cores: it leads a job for as long as it holds the lock, and answers nothing
// that is not committed.
//
//	           campaign              recovered
//	standby ────────────▶ recovering ──────────▶ leading ──▶ job over: linger, exit
//	   ▲                      │                     │
//	   └──────────────────────┴─────────────────────┘
//	     lock lost, fenced, or an outcome that stays unknown
//
// # One writer
//
// A term has one committer. Callers hand it events; it applies all that wait to the
// queue, writes the new state in one transaction that compares the lock and the state's
// last revision, and only then gives the answers out. While one transaction is under way
// the next batch gathers; after it, the committer lingers a little for the callers that it
// just answered, because one transaction for many is what makes the rate.
//
// # Guarantees
//
// Nobody is told what is not stored, and nobody who does not lead tells anything: an answer
// leaves after the fenced write that carries it or, when it changes nothing, while the lease
// of the lock is trusted to hold. The next master goes on from the last commit, with the same
// answers to repeated requests. docs/protocols.md has the rules, each with its test.
//
// # Failure behaviour
//
// A transaction that definitely failed: the queue goes back to the last committed state
// and the batch's callers get ErrNotStored; they may repeat. An outcome that is unknown is
// read back: if it stands there, it happened; if the state is unchanged, the same bytes are
// sent again; if anything else stands there, the term is over. An event that panics is
// dropped alone: the others of its batch are applied again to the last committed state.
//
// When the lock is lost the term ends at once: a write under way is abandoned, callers get
// ErrNotLeader, and OnTermOver lets the faces close their connections. Run then campaigns
// again. It gives up only on what every term would meet again: a state that is damaged,
// partial, newer, of another cluster or of a job with other settings, and a store that went
// back in time. Nothing is ever written over such a state.
package master
