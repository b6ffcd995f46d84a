package committer

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime"
	"strings"

	"golang.org/x/sync/errgroup"

	"trainmaster/master/store"
	"trainmaster/taskqueue"
)

// TableCache holds task tables that a standby has read. A table is immutable and named by its report, so a cached table is never
// outdated. The table of an online dataset grows: the cache reads the new parts. The nil cache is empty.
type TableCache struct {
	tables map[string]cachedTable // by report id
	sets   map[string]cachedSet   // by name
}

// cachedTable is a table with the number of its parts and their digest.
type cachedTable struct {
	*taskqueue.Table
	parts  int
	digest [32]byte
}

// Dataset returns the table of the dataset with a name and the digest of its files. ok: the state named it.
func (c *TableCache) Dataset(name string) (table *taskqueue.Table, digest [32]byte, ok bool) {
	set, ok := c.sets[name]
	return c.table(set.report).Table, set.files, ok
}

// cachedSet is a dataset of a state.
type cachedSet struct {
	report string
	files  [32]byte // digest of the files
}

// Next returns a cache with the tables that a stored state names, and reads those that c lacks. isNew reports whether it read a table,
// or c is nil. commit is the number of the commit of the state.
func (c *TableCache) Next(ctx context.Context, db store.Store, state []byte) (next *TableCache, commit uint64, isNew bool, err error) {
	var snapshot taskqueue.Snapshot
	if err := db.Decode(state, &snapshot, MaxStoredState); err != nil {
		return nil, 0, false, err
	}
	next, isNew = &TableCache{tables: map[string]cachedTable{}, sets: map[string]cachedSet{}}, c == nil
	for i := range snapshot.Sets {
		set := &snapshot.Sets[i]
		table := c.table(set.ReportID)
		isNew = isNew || table.Table == nil
		if table, err = loadTable(ctx, db, set, table); err != nil {
			return nil, 0, false, err
		}
		next.tables[set.ReportID] = table
		known := cachedSet{report: set.ReportID}
		copy(known.files[:], set.Digest)
		next.sets[cmp.Or(set.Name, set.Kind.String())] = known // format 2 has no names
	}
	return next, snapshot.Commit, isNew, nil
}

// Len returns the number of tables.
func (c *TableCache) Len() int { return len(c.tables) }

// table returns the table of a report, or none.
func (c *TableCache) table(report string) cachedTable {
	if c == nil {
		return cachedTable{}
	}
	return c.tables[report]
}

// loadTables reads the tables that a state names, except the cached tables.
func loadTables(ctx context.Context, store store.Store, snapshot *taskqueue.Snapshot, cache *TableCache) ([]*taskqueue.Table, error) {
	tables := make([]*taskqueue.Table, len(snapshot.Sets))
	for i := range snapshot.Sets {
		t, err := loadTable(ctx, store, &snapshot.Sets[i], cache.table(snapshot.Sets[i].ReportID))
		if err != nil {
			return nil, fmt.Errorf("task table of dataset %d (report %s): %w", i, snapshot.Sets[i].ReportID, err)
		}
		tables[i] = t.Table
	}
	return tables, nil
}

// loadTable reads the parts that the cached table lacks, decodes them side by side and appends them in order.
func loadTable(ctx context.Context, store store.Store, set *taskqueue.SetSnapshot, cached cachedTable) (cachedTable, error) {
	if set.Parts < 0 || set.ChunksPerTask < 1 {
		return cached, fmt.Errorf("%w: %d parts, %d chunks for each task", taskqueue.ErrDamaged, set.Parts, set.ChunksPerTask)
	}
	//guard:cached-table-extended
	if cached.Table != nil && (!set.Online || cached.parts == set.Parts) {
		return cached, nil
	}
	table := taskqueue.NewTable(set.Chunks)
	if cached.Table != nil && cached.parts < set.Parts {
		table = cached.Extend()
	} else {
		cached = cachedTable{}
	}
	parts, _, err := store.Parts(ctx, set.ReportID, cached.parts, set.Parts-cached.parts)
	if err != nil {
		return cached, err
	}
	digest := PartsDigest(set.Online, cached.digest, parts)
	//guard:parts-digest
	if string(digest[:]) != string(set.PartsDigest) {
		return cached, fmt.Errorf("%w: expected %d parts with the digest in the state, found another digest", taskqueue.ErrDamaged, set.Parts)
	}
	if err := addParts(ctx, store, table, parts); err != nil {
		return cached, err
	}
	table.Group(set.ChunksPerTask)
	return cachedTable{table, set.Parts, digest}, nil
}

// addParts decodes parts side by side and appends them in order.
func addParts(ctx context.Context, store store.Store, table *taskqueue.Table, parts [][]byte) error {
	decoded := make([]chan *taskqueue.Part, len(parts))
	for i := range decoded {
		decoded[i] = make(chan *taskqueue.Part, 1)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0) + 1)
	group.Go(func() error {
		for i, c := range decoded {
			select {
			case p := <-c:
				if err := table.AddPart(p); err != nil {
					return fmt.Errorf("%w: %w", taskqueue.ErrDamaged, err)
				}
				parts[i] = nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	for i := range parts {
		group.Go(func() error {
			var p taskqueue.Part
			if err := store.Decode(parts[i], &p, maxPartDecoded); err != nil {
				return fmt.Errorf("%w: part %d: %w", taskqueue.ErrDamaged, i, err)
			}
			decoded[i] <- &p
			return nil
		})
	}
	return group.Wait()
}

// PartsDigest returns the digest of the parts of a table. The parts of an online dataset are a chain that continues a digest.
func PartsDigest(online bool, before [32]byte, parts [][]byte) [32]byte {
	if online {
		for _, p := range parts {
			before = taskqueue.ChainDigest(before, p)
		}
		return before
	}
	h := sha256.New()
	for _, p := range parts {
		h.Write(p)
	}
	return [32]byte(h.Sum(nil))
}

const (
	maxPartDecoded = 64 << 20
	maxPartBytes   = 900 << 10 // encoded; etcd takes requests of 1.5 MiB
	partChunks     = 1 << 18   // to begin with
)

// TableParts encodes a table from a chunk on in parts, each below maxPartBytes.
func TableParts(encode func(v any) ([]byte, error), t *taskqueue.Table, first int) (parts [][]byte, err error) {
	size := partChunks
	for first < t.Chunks() {
		n := min(size, t.Chunks()-first)
		b, err := encode(t.Part(first, n))
		if err != nil {
			return nil, err
		}
		if len(b) > maxPartBytes {
			if n == 1 {
				return nil, errors.New("one chunk with its path does not fit a part of the task table")
			}
			size = max(1, n/2)
			continue
		}
		parts = append(parts, b)
		first += n
	}
	return parts, nil
}

// Stored rebuilds a queue from its stored state and the roster of the same revision,
// without leading: for tools that look at a job that no master leads.
func Stored(ctx context.Context, store store.Store, state []byte, roster map[string][]byte) (*taskqueue.Queue, error) {
	var snapshot taskqueue.Snapshot
	if err := store.Decode(state, &snapshot, MaxStoredState); err != nil {
		return nil, fmt.Errorf("%w: decode /task_queues: %w", taskqueue.ErrDamaged, err)
	}
	if _, err := snapshot.Upgrade(); err != nil {
		return nil, err
	}
	tables, err := loadTables(ctx, store, &snapshot, nil)
	if err != nil {
		return nil, err
	}
	return taskqueue.Restore(&snapshot, roster, tables, taskqueue.AsStored)
}

// RosterOf returns the trainers among the keys of a state, by id.
func RosterOf(values map[string][]byte) map[string][]byte {
	roster := map[string][]byte{}
	for key, value := range values {
		if id, ok := strings.CutPrefix(key, taskqueue.RosterPrefix); ok {
			roster[id] = value
		}
	}
	return roster
}
