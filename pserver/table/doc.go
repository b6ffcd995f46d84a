// Package table is the memory of embedding tables: rows of float32 by int64 id,
// with the optimizer's state beside each row. It knows no network and no disk.
//
// A table has a fixed number of hash slots ([Slots]); an id belongs to the slot
// [Config.SlotOf], by a hash under the [Key] of the job. A slot is to a table what a block is to a tensor: it lies wholly on
// one shard, has one lock, and everything in it changes together:
//
//	slot ── lock
//	     ├─ index   []uint32   open addressing: 8 bits of the id's hash, 24 bits of row number + 1; 0 is free
//	     ├─ chunks  256 rows each, in memory without pointers, so that the collector has next to nothing to look at:
//	     │            id       int64
//	     │            version  uint32   the step of the last update; 0: the place is free
//	     │            updates  uint32   Adam's t, only of rules that count
//	     │            values   float32  dim parameters, then the optimizer's state
//	     ├─ waiting ids that were updated too seldom to have a row
//	     └─ clock   the greatest step applied
//
// # Rows
//
// Every id has a value from the start: the initial one, a function of (seed, the
// table's name, id) alone, see [Config]. A row is made by the first update of its
// id; a lookup changes nothing, so that evaluation leaves no trace and any number
// of shards gives the same model, bit by bit.
//
// An update changes the rows that it names and no others, moments and decay
// included (as PyTorch's SparseAdam does, "lazily"). Ids that are there several
// times are summed first, in their order, and the rule is applied once. Adam's t
// counts the updates of the row: its moments start at 0 when the row is made, and
// so the correction of their bias is exact. (SparseAdam counts the steps of the
// whole table, and takes greater steps for rows that come late.)
//
// With [Config].Admission k an id has no row before its k-th update; those before
// are counted and otherwise lost. With [Config].Expiry n a row, or the count of an
// id without one, is dropped when the slot's clock at its last update lies more than n
// steps before the slot's clock; the id then has its initial value again. The clock at
// the update counts, not the step of the trainer: the step of a trainer that is slow or
// joined late may be long past. This is looked at whenever the clock passes a multiple
// of max(1, n/4), before the update is applied. Time does not matter, only steps.
//
// # Once
//
// A [Column] keeps for one trainer the step last applied in each slot. An update of
// a slot with that step or an earlier one changes nothing.
//
// # Cuts
//
// A [Cut] is a moment. It has of each slot ([Image]) all rows, or those changed since
// the last full cut. An update copies the rows that it is about to change, and
// [Table.Collect] the other rows, a piece of 64 KiB under the lock at a time.
package table
