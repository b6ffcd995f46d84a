package committer

import (
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
// outdated. The nil cache is empty.
type TableCache struct {
	tables map[string]*taskqueue.Table // by report id
}

// Next returns a cache with the tables that a stored state names, and reads those that c lacks. isNew reports whether it read a table,
// or c is nil. commit is the number of the commit of the state.
func (c *TableCache) Next(ctx context.Context, db store.Store, state []byte) (next *TableCache, commit uint64, isNew bool, err error) {
	var snapshot taskqueue.Snapshot
	if err := db.Decode(state, &snapshot, MaxStoredState); err != nil {
		return nil, 0, false, err
	}
	next, isNew = &TableCache{tables: map[string]*taskqueue.Table{}}, c == nil
	for i := range snapshot.Sets {
		set := &snapshot.Sets[i]
		table := c.table(set.ReportID)
		if table == nil {
			isNew = true
			if table, err = loadTable(ctx, db, set); err != nil {
				return nil, 0, false, err
			}
		}
		next.tables[set.ReportID] = table
	}
	return next, snapshot.Commit, isNew, nil
}

// Len returns the number of tables.
func (c *TableCache) Len() int { return len(c.tables) }

// table returns the table of a report, or nil.
func (c *TableCache) table(report string) *taskqueue.Table {
	if c == nil {
		return nil
	}
	return c.tables[report]
}

// loadTables reads the tables that a state names, except the cached tables.
func loadTables(ctx context.Context, store store.Store, snapshot *taskqueue.Snapshot, cache *TableCache) ([]*taskqueue.Table, error) {
	tables := make([]*taskqueue.Table, len(snapshot.Sets))
	for i := range snapshot.Sets {
		if tables[i] = cache.table(snapshot.Sets[i].ReportID); tables[i] != nil {
			continue
		}
		t, err := loadTable(ctx, store, &snapshot.Sets[i])
		if err != nil {
			return nil, fmt.Errorf("task table of dataset %d (report %s): %w", i, snapshot.Sets[i].ReportID, err)
		}
		tables[i] = t
	}
	return tables, nil
}

// loadTable reads the parts, decodes them side by side and appends them in order.
func loadTable(ctx context.Context, store store.Store, set *taskqueue.SetSnapshot) (*taskqueue.Table, error) {
	if set.Parts < 0 || set.ChunksPerTask < 1 {
		return nil, fmt.Errorf("%w: %d parts, %d chunks for each task", taskqueue.ErrDamaged, set.Parts, set.ChunksPerTask)
	}
	parts, _, err := store.Parts(ctx, set.ReportID, set.Parts)
	if err != nil {
		return nil, err
	}
	//guard:parts-digest
	if digest := partsDigest(parts); string(digest[:]) != string(set.PartsDigest) {
		return nil, fmt.Errorf("%w: expected %d parts with the digest in the state, found another digest", taskqueue.ErrDamaged, len(parts))
	}
	table := taskqueue.NewTable(set.Chunks)
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
	if err := group.Wait(); err != nil {
		return nil, err
	}
	table.Group(set.ChunksPerTask)
	return table, nil
}

func partsDigest(parts [][]byte) [32]byte {
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

// TableParts encodes a table in parts, each below maxPartBytes, and returns the digest of all.
func TableParts(encode func(v any) ([]byte, error), t *taskqueue.Table) (parts [][]byte, digest [32]byte, err error) {
	size := partChunks
	for first := 0; first < t.Chunks(); {
		n := min(size, t.Chunks()-first)
		b, err := encode(t.Part(first, n))
		if err != nil {
			return nil, digest, err
		}
		if len(b) > maxPartBytes {
			if n == 1 {
				return nil, digest, errors.New("one chunk with its path does not fit a part of the task table")
			}
			size = max(1, n/2)
			continue
		}
		parts = append(parts, b)
		first += n
	}
	return parts, partsDigest(parts), nil
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
