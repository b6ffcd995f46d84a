package shards

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/table"
)

// errOtherKey is returned if a server has another table key than expected. The client then asks all servers again.
var errOtherKey = errors.New("parameter servers have different keys of table ids")

const otherKeyHelp = "stop the servers and restore all of them from one checkpoint, or start with an empty checkpoint directory"

// tableKey is the key by which all servers hash the ids of tables, and the first server that has it. nil: it is not known.
type tableKey struct {
	table.Key
	shard int
}

func (k *tableKey) toProto() []byte {
	if k == nil {
		return nil
	}
	return append([]byte{}, k.Bytes()...) // present, also where there is no key
}

// learnKey asks every server for the key of its tables. Servers with parameters have a key; otherwise the first server that is
// initialized chooses it. A server keeps its key, so a difference between two servers with parameters is permanent.
func (set *Set) learnKey(ctx context.Context) (*tableKey, error) {
	if len(set.table.Sparse) == 0 || set.key != nil {
		return set.key, nil
	}
	var ready, begun *tableKey
	for _, s := range set.shards {
		reply, err := s.Describe(ctx)
		if err != nil {
			return nil, err
		}
		tables := reply.GetPlacement().GetTables()
		if len(tables) == 0 {
			continue
		}
		found := &tableKey{table.KeyOf(tables[0].GetKey()), s.Index}
		switch {
		case reply.GetState() != pb.DescribeReply_STATE_READY:
			if begun == nil {
				begun = found
			}
		case ready == nil:
			ready = found
		case ready.Key != found.Key:
			return nil, fmt.Errorf("tables of parameter servers %d and %d have different keys of ids (each began with the secret of another job): %s", ready.shard, found.shard, otherKeyHelp)
		}
	}
	set.key = ready
	known := cmp.Or(ready, begun)
	var key table.Key
	if known != nil {
		key = known.Key
	}
	set.setKey(key)
	return known, nil
}

// setKey sets the key of the tables of the placement computed here.
func (set *Set) setKey(key table.Key) {
	tables := append([]table.Config(nil), set.table.Sparse...)
	for k := range tables {
		tables[k].Key = key
	}
	set.table.Sparse = tables
}

// checkKey compares the key in a server's reply with the known key, and returns the key to use.
func (set *Set) checkKey(known *tableKey, shard int, reply *pb.InitParametersReply) (*tableKey, error) {
	tables := reply.GetPlacement().GetTables()
	if len(set.table.Sparse) == 0 || len(tables) == 0 {
		return known, nil
	}
	found := &tableKey{table.KeyOf(tables[0].GetKey()), shard}
	switch {
	case known == nil:
		set.setKey(found.Key)
		return found, nil
	case known.Key == found.Key:
		return known, nil
	}
	set.key = nil
	return nil, fmt.Errorf("%w: parameter servers %d and %d", errOtherKey, known.shard, shard)
}
