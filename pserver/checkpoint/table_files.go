package checkpoint

import (
	"fmt"
	"slices"

	"trainmaster/pserver/optimizer"
)

// slotsFile is the file of a checkpoint with the state of the slots of table k, apart from their rows.
func slotsFile(k int) string { return fmt.Sprintf("table-%d-slots.safetensors", k) }

// The tensors of a slots file.
const (
	heldSlots    = "slots"         // U64 [slots], numbers of the held slots, ascending.
	slotRows     = "slot_rows"     // U64 [slots], rows of each slot.
	slotClocks   = "slot_clocks"   // U64 [slots], greatest step applied.
	slotWaiting  = "slot_waiting"  // U64 [slots], candidates of each slot.
	waitingIDs   = "waiting_ids"   // U64, ids as two's complement.
	waitingCount = "waiting_count" // U64, updates.
	waitingLast  = "waiting_last"  // U64, step of the last update.
	slotSteps    = "applied_steps" // U64 [trainers, slots]
)

// The files of a segment have one tensor each. Files of the optimizer state have the names of its slots. The names of tensors begin
// with the name of the table.
const (
	rowsPart      = "rows"      // "NAME.rows" F32 [rows, dim]
	idsPart       = "ids"       // "NAME.ids" I64 [rows]
	versionsPart  = "versions"  // "NAME.versions" U32 [rows]: steps of the last updates
	updatesPart   = "updates"   // "NAME.updates" U32 [rows], only of an optimizer that counts
	unchangedPart = "unchanged" // "NAME.unchanged" U8: a bit for each row of the full segment, by slot in whole bytes, if rows expire: it is unchanged and in use
	countsPart    = "counts"    // "NAME.counts" U64 [2, slots]: rows, and bytes of unchanged, of each slot of slotsFile
)

func partFile(part string) string { return part + ".safetensors" }

// segmentFiles are the names of the files of a segment.
func segmentFiles(o optimizer.Config) []string {
	parts := []string{rowsPart, idsPart, versionsPart, unchangedPart, countsPart}
	if o.Counted() {
		parts = append(parts, updatesPart)
	}
	parts = slices.Concat(parts, o.Rule().Slots())
	for i, part := range parts {
		parts[i] = partFile(part)
	}
	return parts
}
