package checkpoint

import (
	"fmt"
	"slices"

	"trainmaster/pserver/optimizer"
)

// tableFile names a file of the k-th table of embeddings.
func tableFile(k int, what string) string { return fmt.Sprintf("table-%d-%s.safetensors", k, what) }

// The files of a table. Files of the optimizer state have the names of its slots.
const (
	rowsFile     = "rows"     // "NAME.rows" F32 [rows, dim]
	idsFile      = "ids"      // "NAME.ids" I64 [rows]
	versionsFile = "versions" // "NAME.versions" U32 [rows]: steps of the last updates
	updatesFile  = "updates"  // "NAME.updates" U32 [rows], only of an optimizer that counts
	slotsFile    = "slots"    // the numbers of each slot
)

// The tensors of a slots file.
const (
	heldSlots    = "slots"         // U64 [slots], numbers of the held slots, ascending.
	slotRows     = "slot_rows"     // U64 [slots], rows of each slot in the other files, in their order.
	slotLiving   = "slot_living"   // U64 [slots], rows of each slot in the table.
	slotClocks   = "slot_clocks"   // U64 [slots], greatest step applied.
	slotFreed    = "slot_freed"    // U64 [slots], number of freed_ids of each slot.
	freedIDs     = "freed_ids"     // U64, ids as two's complement.
	slotWaiting  = "slot_waiting"  // U64 [slots], candidates of each slot.
	waitingIDs   = "waiting_ids"   // U64.
	waitingCount = "waiting_count" // U64, updates.
	waitingLast  = "waiting_last"  // U64, step of the last update.
	slotSteps    = "applied_steps" // U64 [trainers, slots]
)

// tableFiles are the names of the files of a table.
func tableFiles(k int, o optimizer.Config) []string {
	names := []string{rowsFile, idsFile, versionsFile, slotsFile}
	if o.Counted() {
		names = append(names, updatesFile)
	}
	names = slices.Concat(names, o.Rule().Slots())
	for i, what := range names {
		names[i] = tableFile(k, what)
	}
	return names
}
