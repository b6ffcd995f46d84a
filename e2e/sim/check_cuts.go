package sim

import (
	"maps"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"trainmaster/master"
	"trainmaster/pserver/checkpoint"
	"trainmaster/taskqueue"
)

// names takes the set that a transaction names.
func (c *check) names(req *pb.TxnRequest) {
	c.named = nil
	for _, op := range req.Success {
		if p := op.GetRequestPut(); p != nil && string(p.Key) == master.LatestSetKey {
			set, err := checkpoint.ParseSet(p.Value)
			if err != nil {
				c.breaks("latest names a whole set", "%v", err)
				return
			}
			c.named = set
			c.whole(set)
		}
	}
}

// whole: every file of the set that is named is there.
func (c *check) whole(set *checkpoint.Set) {
	if set == nil {
		return
	}
	for i, part := range set.Shards {
		if f := c.world.folder.files[part.SHA256]; part.SHA256 == "" || f == nil || f.part.Shard != i {
			c.breaks("latest names a whole set", "set %d: %+v is not there", set.Number, part)
		}
	}
}

// cutCommitted is what the set of a cut has. The set is named, and what it has counts, in one transaction.
func (c *check) cutCommitted(ev *taskqueue.LedgerEvent) map[sample]int {
	if c.named == nil || c.named.Number != ev.Step {
		c.breaks("the name of a set and what counts are one", "cut %d is committed, with it set %+v is named", ev.Step, c.named)
		return nil
	}
	all := map[sample]int{}
	for _, part := range c.named.Shards {
		if f := c.world.folder.files[part.SHA256]; f != nil {
			maps.Copy(all, f.contents)
		}
	}
	return all
}

// wentBack: what a server has in a new epoch is what was committed when that began, and nothing else.
func (c *check) wentBack(s *server, epoch uint32) {
	want, begun := map[sample]int{}, c.epochs[epoch]
	if c.over() { // a server that was lost after the end is to have the last cut, in the epoch that there is
		begun = c.world.rings.committed
	}
	for r, n := range begun {
		if s.world.serverOf(r) == s.index {
			want[r] = n
		}
	}
	if begun == nil || !maps.Equal(s.contents(), want) {
		c.breaks("what no set has is gone after going back", "%s in epoch %d has %d records, the set has %d", s.name, epoch, len(s.contents()), len(want))
	}
}

// latestIsLast: when the job is over, the set that is named is the last committed cut.
func (c *check) latestIsLast() {
	set := c.world.latestSet()
	c.whole(set)
	number := uint64(0)
	if set != nil {
		number = set.Number
	}
	if number != c.step {
		c.breaks("the name of a set and what counts are one", "at the end set %d is named, and cut %d is committed", number, c.step)
	}
}
