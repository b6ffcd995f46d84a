package placement

import (
	"cmp"
	"slices"

	"trainmaster/pserver/partition"
)

// balanceSlots lists the moves, table after table, of the slots of t to shards 0 to shards-1, balanced within one for each table. The
// number of moves is minimal: the fullest shards keep the remainder. The last slots of a shard move first, so that shards keep
// their slots in few runs. All slots of a table count equal, since ids are hashed.
func (t *Table) balanceSlots(shards int) (moves []Move) {
	total := make([]int, shards) // over all tables so far
	for k, owners := range t.SlotOwners {
		count := make([]int, max(shards, t.Shards))
		for _, owner := range owners {
			count[owner]++
		}
		order := make([]int, shards)
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(a, b int) int {
			return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(total[a], total[b]))
		})
		room := make([]int, len(count)) // slots to receive; negative: slots to give
		for rank, i := range order {
			fair := len(owners) / shards
			if rank < len(owners)%shards {
				fair++
			}
			room[i] = fair - count[i]
			total[i] += fair
		}
		for i := shards; i < len(count); i++ {
			room[i] = -count[i]
		}
		to := 0
		for slot, owner := range slices.Backward(owners) {
			if room[owner] >= 0 {
				continue
			}
			for room[to] <= 0 {
				to++
			}
			room[owner]++
			room[to]--
			moves = append(moves, Move{partition.Slot(k, uint32(slot)), owner, uint32(to)})
		}
	}
	return moves
}
