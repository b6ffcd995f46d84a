package restore

import (
	"context"
	"errors"
	"fmt"

	"trainmaster/etcdstore"
	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/checkpoint/modelfile"
)

// ListedSet is a set of checkpoints as `master checkpoint list` shows it.
type ListedSet struct {
	Set      uint64 `json:"set"`
	Named    bool   `json:"named"` // by etcd
	Mode     string `json:"mode"`
	Version  uint64 `json:"version"`
	Shards   int    `json:"shards"`
	Bytes    int64  `json:"bytes"`
	Complete bool   `json:"complete"`
	Problem  string `json:"problem"`
}

// ListSets lists the sets of a directory, the newest first. It includes the set that etcd names, also if its file is missing.
func ListSets(ctx context.Context, store *etcdstore.Store, dir string) ([]ListedSet, error) {
	pointer, err := store.ReadPointer(ctx)
	if err != nil {
		return nil, err
	}
	named := uint64(0)
	if set, err := checkpoint.ParseSet(pointer.Set); err == nil {
		named = set.Number
	}
	reports, err := modelfile.Inspect(ctx, dir)
	if err != nil && !errors.Is(err, checkpoint.ErrNoSet) {
		return nil, err
	}
	list, found := []ListedSet{}, false
	for _, r := range reports {
		s := ListedSet{Set: r.Set, Named: r.Set == named, Mode: r.Mode, Version: r.Version, Shards: len(r.Shards), Complete: r.Complete, Problem: r.Problem}
		for _, part := range r.Shards {
			s.Bytes += part.Bytes
		}
		found = found || s.Named
		list = append(list, s)
	}
	if named != 0 && !found {
		list = append(list, ListedSet{Set: named, Named: true, Problem: fmt.Sprintf("%s/%08d.json: expected the file of the set, found none", checkpoint.SetsDir, named)})
	}
	return list, nil
}
