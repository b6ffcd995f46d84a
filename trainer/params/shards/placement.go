package shards

import (
	"context"
	"errors"
	"fmt"
	"slices"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/onwire"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/table"
	"trainmaster/trainer/params/link"
)

// takePlacement compares a server's table with the one known here, and takes a later one over.
func (set *Set) takePlacement(p *pb.ParameterPlacement) error {
	theirs, err := onwire.PlacementFromProto(p)
	if err != nil {
		return fmt.Errorf("the server's placement: %w", err)
	}
	if mine := set.table.Sparse; len(mine) > 0 && len(theirs.Sparse) > 0 && mine[0].Key == (table.Key{}) { // not known yet
		set.setKey(theirs.Sparse[0].Key)
	}
	if theirs.Digest() == set.table.Digest() {
		return nil
	}
	if what := difference(theirs, set.table); what != "" {
		return fmt.Errorf("the server's placement is not the one computed here: %s", what)
	}
	if theirs.Epoch > set.table.Epoch {
		set.usePlacement(theirs)
	}
	return fmt.Errorf("%w: the server's placement has epoch %d", link.ErrMoved, theirs.Epoch)
}

// difference says in words where a server's table differs from the one computed here; "": in the epoch, or in the owners of blocks and slots.
func difference(theirs, mine *placement.Table) string {
	if theirs.Epoch == mine.Epoch && theirs.Shards != mine.Shards || len(theirs.Tensors) != len(mine.Tensors) || len(theirs.Sparse) != len(mine.Sparse) {
		return fmt.Sprintf("expected %d tensors and %d tables on %d shards, found %d and %d on %d",
			len(mine.Tensors), len(mine.Sparse), mine.Shards, len(theirs.Tensors), len(theirs.Sparse), theirs.Shards)
	}
	for i, want := range mine.Tensors {
		if got := theirs.Tensors[i]; got.Name != want.Name || !slices.Equal(got.Shape, want.Shape) {
			return fmt.Sprintf("expected the tensor %q %v, found %q %v", want.Name, want.Shape, got.Name, got.Shape)
		}
	}
	for k, want := range mine.Sparse {
		got := theirs.Sparse[k]
		if got.Name == want.Name && got.Key != want.Key {
			return fmt.Sprintf("table %q has another key of ids than at other servers: %s", want.Name, otherKeyHelp)
		}
		if got != want {
			return fmt.Sprintf("expected the table %+v, found %+v", want, got)
		}
	}
	if theirs.Epoch == mine.Epoch {
		return "some blocks or slots are on other shards"
	}
	return ""
}

// usePlacement gives every shard the blocks of a later table. Blocks keep their state, so that a call
// continues.
func (set *Set) usePlacement(table *placement.Table) {
	for _, s := range set.shards {
		s.HangUp()
	}
	for len(set.shards) < table.Shards {
		set.shards = append(set.shards, &shard{Link: link.New(&set.cfg.Link, len(set.shards), "")})
	}
	for _, s := range set.shards[table.Shards:] {
		s.Close() //nolint:errcheck // it has no blocks any more
	}
	set.shards = set.shards[:table.Shards]
	set.table = table
	set.assignBlocks()
	set.cfg.Link.Log.WithField("epoch", table.Epoch).WithField("shards", table.Shards).Info("blocks moved, using new placement")
}

// assignBlocks gives every shard the ids of the blocks that it owns.
func (set *Set) assignBlocks() {
	for _, s := range set.shards {
		s.blocks = nil
	}
	for id, owner := range set.table.Owners {
		s := set.shards[owner]
		s.blocks = append(s.blocks, uint64(id))
	}
}

// refreshLayout asks the servers until one has a later placement, or until cause excludes it.
// It also waits while some servers have a placement with more shards than the client found.
func (set *Set) refreshLayout(ctx context.Context, cause error) error {
	pause := set.cfg.Link.Backoff()
	for {
		var newest *pb.ParameterPlacement
		for _, s := range set.shards {
			if p := s.Placement(ctx); p.GetEpoch() > newest.GetEpoch() {
				newest = p
			}
		}
		if newest.GetEpoch() > set.table.Epoch {
			if err := set.takePlacement(newest); !errors.Is(err, link.ErrMoved) {
				return err
			}
			return nil
		}
		if _, lacking := errors.AsType[*link.ShardsError](cause); lacking && newest != nil && int(newest.GetShards()) != set.table.Shards {
			return cause
		}
		if err := pause.Wait(ctx, cause); err != nil {
			return err
		}
	}
}
