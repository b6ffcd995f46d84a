package placement

import (
	"cmp"
	"slices"

	"trainmaster/pserver/partition"
)

// Move is the move of a partition to another shard.
type Move struct {
	partition.ID
	From, To uint32
}

// evenly is the part of a shard's fair share by which two shards may differ: less is
// not worth a move.
const evenly = 64

// Balance lists the moves of the blocks of t to shards 0 to shards-1, and then the moves of the slots.
func (t *Table) Balance(shards int) []Move {
	return append(t.balanceBlocks(shards), t.balanceSlots(shards)...)
}

// balanceBlocks lists the moves of the blocks. First the blocks of removed shards move to the shard with the
// fewest elements, the largest first. Then the fullest shard gives blocks to the emptiest: the largest block that does not make
// the fuller shard the emptier one. This ends when they differ by less than 1/64 of a fair share or no block is small enough.
// No block moves twice.
func (t *Table) balanceBlocks(shards int) (moves []Move) {
	blocks := t.Blocks()
	slices.SortStableFunc(blocks, func(a, b Block) int { return cmp.Compare(b.Len, a.Len) })
	loads := make([]int, max(shards, t.Shards))
	blocksOf := make([][]Block, len(loads)) // largest first
	total := 0
	for _, b := range blocks {
		owner := t.Owners[b.ID]
		blocksOf[owner] = append(blocksOf[owner], b)
		loads[owner] += b.Len
		total += b.Len
	}
	move := func(b Block, from, to int) {
		loads[from], loads[to] = loads[from]-b.Len, loads[to]+b.Len
		moves = append(moves, Move{partition.Block(b.ID), uint32(from), uint32(to)})
	}
	for _, b := range blocks {
		if from := int(t.Owners[b.ID]); from >= shards {
			move(b, from, least(loads[:shards]))
		}
	}
	for {
		from, to := most(loads[:shards]), least(loads[:shards])
		gap := loads[from] - loads[to]
		i := slices.IndexFunc(blocksOf[from], func(b Block) bool { return 2*b.Len <= gap })
		if i < 0 || gap*evenly*shards < total {
			return moves
		}
		move(blocksOf[from][i], from, to)
		blocksOf[from] = slices.Delete(blocksOf[from], i, i+1)
	}
}

func least(loads []int) int { return slices.Index(loads, slices.Min(loads)) }
func most(loads []int) int  { return slices.Index(loads, slices.Max(loads)) }

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
