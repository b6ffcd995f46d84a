// Package table implements the memory of embedding tables: rows of float32 by int64 id, with the optimizer state of each row. It
// uses no network and no disk.
//
// A table has a fixed number of hash slots ([Slots]). An id belongs to the slot [Config.SlotOf], by a hash under the [Key] of the job.
// A slot of a table corresponds to a block of a tensor: it belongs to one shard, has one lock, and changes atomically:
//
//	slot ── lock
//	     ├─ index   []uint32   open addressing: 8 bits of the id's hash, 24 bits of row number + 1; 0 is free
//	     ├─ chunks  256 rows each, in memory without pointers, which the garbage collector does not scan:
//	     │            id       int64
//	     │            version  uint32   the step of the last update; 0: the row is free
//	     │            updates  uint32   Adam's t, only of rules that count
//	     │            values   float32  dim parameters, then the optimizer's state
//	     ├─ candidates  ids without a row, which need more updates
//	     └─ clock   the greatest step applied
//
// # Rows
//
// Every id has a value: initially a function of (seed, name of the table, id) alone, see [Config]. The first update of an id makes
// its row. A lookup changes nothing, so evaluation has no effect, and any number of shards gives the same model, bit by bit.
//
// An update changes only its own rows, moments and decay included, as PyTorch's SparseAdam does. Gradients of repeated ids are summed
// first, in their order, and the rule is applied once. Adam's t counts the updates of the row: its moments start at 0 with the
// row, so the bias correction is exact. (SparseAdam counts the steps of the whole table, and takes greater steps for rows that
// start late.)
//
// With [Config].Admission k an id has no row before its k-th update; earlier updates are counted and otherwise lost. With
// [Config].Expiry n a row, or the count of an id without a row, is dropped when its last update is more than n steps of the slot's
// clock ago. The id then has its initial value again. The age depends on the clock at the update, not on the step of the trainer,
// which is low for a slow or late trainer. Expiry runs when the clock passes a multiple of max(1, n/4), before the update. It
// depends on steps only, not on time.
//
// # Repeated updates
//
// A slot is a [partition.Partition], which stores the step of each trainer that was applied last. An update of a slot with that step or an
// earlier one changes nothing.
//
// # Cuts
//
// A [Cut] is a consistent state of a table. Of each slot ([Image]) it has all rows, or the rows changed since a full cut. A row has
// one byte for this: the number of the last cut of its slot before its last update, modulo 256. No cut clears it, so a cut that is
// dropped or whose files are lost has no effect on later cuts. An update copies the rows that it is about to change.
// [Table.Collect] copies the other rows in pieces of 64 KiB under the lock.
package table
