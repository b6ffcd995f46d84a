package sim

import (
	"maps"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"trainmaster/master/pscontrol"
	"trainmaster/pserver/checkpoint"
	"trainmaster/taskqueue"
)

// names records the checkpoint set that a transaction names.
func (c *check) names(req *pb.TxnRequest) {
	c.named = nil
	for _, op := range req.Success {
		if p := op.GetRequestPut(); p != nil && string(p.Key) == pscontrol.LatestSetKey {
			set, err := checkpoint.ParseSet(p.Value)
			if err != nil {
				c.breaks("latest names a complete set", "%v", err)
				return
			}
			c.named = set
			c.setComplete(set)
		}
	}
}

// setComplete checks that every file of a named set exists.
func (c *check) setComplete(set *checkpoint.Set) {
	if set == nil {
		return
	}
	for i, part := range set.Shards {
		if f := c.world.folder.files[part.SHA256]; part.SHA256 == "" || f == nil || f.part.Shard != i {
			c.breaks("latest names a complete set", "set %d: missing file %+v", set.Number, part)
		}
	}
}

// cutCommitted returns the records of a committed cut. It checks that the same transaction names the set of the cut.
func (c *check) cutCommitted(ev *taskqueue.LedgerEvent) map[sample]int {
	if c.named == nil || c.named.Number != ev.Step {
		c.breaks("a set is named with its cut", "cut %d is committed, set %+v is named", ev.Step, c.named)
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

// rolledBack checks that a server has exactly the records that were committed at the start of the epoch.
func (c *check) rolledBack(s *server, epoch uint32) {
	want, begun := map[sample]int{}, c.epochs[epoch]
	if c.over() { // a server that was lost after the end loads the last cut in the current epoch
		begun = c.world.rings.committed
	}
	for r, n := range begun {
		if s.world.serverOf(r) == s.index {
			want[r] = n
		}
	}
	if begun == nil || !maps.Equal(s.contents(), want) {
		c.breaks("a rollback restores exactly the set", "%s in epoch %d has %d records, the set has %d", s.name, epoch, len(s.contents()), len(want))
	}
}

// latestIsLast checks that the named set is the last committed cut when the job has ended.
func (c *check) latestIsLast() {
	set := c.world.latestSet()
	c.setComplete(set)
	number := uint64(0)
	if set != nil {
		number = set.Number
	}
	if number != c.step {
		c.breaks("a set is named with its cut", "at the end set %d is named, cut %d is committed", number, c.step)
	}
}
