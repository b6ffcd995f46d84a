// Package ledger implements the durable history of a job: it seals entries into files, and reads all of them back.
//
// Each commit of the master puts its events under /ledger/<commit> in etcd. The leader's
// [Sealer] moves the oldest of them into sealed files: in a folder, or without one in values
// of etcd that hold ten thousand commits each. One key, [HeadKey], says how far the ledger is
// sealed and names the newest file with its digest; each file names the one before it. What
// the head does not lead to is no part of the ledger.
//
//	/ledger/sealed (head)
//	   │ from 1, through 20000, file ──▶ 10001-20000 ──before──▶ 1-10000
//	/ledger/0000000000004e21 ...        not sealed yet: commit 20001 and on
//
// # Guarantees
//
// A commit is read exactly once, whatever step of sealing a leader dies in:
//
//	write file ─▶ fsync ─▶ rename ─▶ fsync folder ─▶ head (fenced) ─▶ delete keys (fenced), a batch at a time
//	└──────── a file that no head leads to: ────────┘└── keys at or below the head's through: ──┘
//	          never read, removed later                  never read, deleted later
//
// The head is replaced by a transaction that compares the leader's lock and the head's own
// last revision: a deposed leader's file never becomes part of the ledger, and a transaction
// that lands late changes nothing.
//
// # Failure
//
// A file that cannot be written (full disk, folder gone) leaves everything in etcd: it is
// logged, counted and tried again, while the job goes on. A master whose folder is not the one
// that the head belongs to does not lead ([ErrElsewhere]). A sealed file that is missing or
// damaged is an error that names the file and the offset ([ErrDamaged]); nothing is guessed.
package ledger
