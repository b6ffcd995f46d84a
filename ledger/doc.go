// Package ledger implements the durable history of a job. It seals ledger entries into files and reads all entries.
//
// Each commit of the master writes its events to /ledger/<commit> in etcd. The [Sealer] of the leader moves the oldest
// entries into sealed files. The files are in a directory, or in values of etcd with up to ten thousand commits each. The
// key [HeadKey] has the last sealed commit and the name and digest of the newest file. Each file names the earlier file. A
// file that is not reachable from the head is not a part of the ledger.
//
//	/ledger/sealed (head)
//	   │ from 1, through 20000, file ──▶ 10001-20000 ──before──▶ 1-10000
//	/ledger/0000000000004e21 ...        not sealed yet: commit 20001 and later
//
// # Guarantees
//
// A reader returns each commit exactly once, even if a leader fails at any step of sealing:
//
//	write file ─▶ fsync ─▶ rename ─▶ fsync directory ─▶ head (fenced) ─▶ delete keys (fenced), a batch at a time
//	└────────── a file without a head: ──────────────┘└── keys up to the last sealed commit: ──┘
//	            never read, removed later                 never read, deleted later
//
// The transaction that replaces the head compares the lock of the leader and the revision of the head. A file of a former
// leader therefore never becomes a part of the ledger, and a delayed transaction changes nothing.
//
// # Failure behavior
//
// If a file cannot be written (full disk, missing directory), its entries stay in etcd. The failure is logged, counted and
// retried, and the job continues. A master must not lead if its directory does not belong to the head ([ErrElsewhere]). A
// missing or damaged sealed file is an error with the file and the offset ([ErrDamaged]).
package ledger
