package pserver_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver"
	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/checkpoint/storage"
	"trainmaster/pserver/table"
	"trainmaster/trainer/params"
)

// tablesJob is two servers with tables, a client, and the expected rows after each push.
type tablesJob struct {
	*cluster
	client *params.Client
	want   []*reference  // by table
	after  [][][]float32 // rows, by table and the number of pushes
}

var (
	bothTables   = []params.Table{users, words}
	tablesConfig = params.Config{Mode: params.Async, Optimizer: tablesAdam, Incarnation: 7}
)

// tableStep is the push of a step to a table. Each step has other ids, so that an increment differs from the whole.
func tableStep(table params.Table, step int) (ids []int64, grads []float32) {
	ids, grads = rowBatch(1, 300, table.Dim)
	n := 300 / step
	return ids[:n], grads[:n*table.Dim]
}

func newTablesJob(t testing.TB, dir string) *tablesJob {
	t.Helper()
	j := &tablesJob{cluster: startCluster(t, dir, 2, nil)}
	j.client = connectTables(t, j.book, tablesConfig)
	for _, table := range bothTables {
		r := newReference(t, table, tablesAdam)
		j.want = append(j.want, r)
		j.after = append(j.after, [][]float32{r.values(everyID(300))})
	}
	return j
}

// push pushes the next step.
func (j *tablesJob) push(t testing.TB) {
	t.Helper()
	step := len(j.after[0])
	for k, table := range bothTables {
		ids, grads := tableStep(table, step)
		j.want[k].push(t, 0, uint64(step), ids, grads)
		j.after[k] = append(j.after[k], j.want[k].values(everyID(300)))
	}
	j.send(t, step)
}

func (j *tablesJob) send(t testing.TB, step int) {
	t.Helper()
	for _, table := range bothTables {
		ids, grads := tableStep(table, step)
		if err := j.client.PushRows(within(t), table.Name, uint64(step), 1, ids, grads); err != nil {
			t.Fatal(err)
		}
	}
}

// restart starts the given number of servers from a set and compares their rows.
func (j *tablesJob) restart(t testing.TB, dir string, servers int, set []byte, pushes int) {
	t.Helper()
	j.leave(t)
	j.cluster = startCluster(t, dir, servers, set)
	j.client = connectTables(t, j.book, tablesConfig)
	j.holds(t, fmt.Sprintf("on %d servers", servers), pushes)
}

func (j *tablesJob) holds(t testing.TB, what string, pushes int) {
	t.Helper()
	for k, table := range bothTables {
		if got := rowsOf(t, j.client, table, everyID(300), 0); !slices.Equal(got, j.after[k][pushes]) {
			t.Fatalf("%s: other rows of %q than after %d pushes", what, table.Name, pushes)
		}
	}
}

// F50, with tables: blocks and rows of a set come from one cut, and the base checkpoints exist.
func TestKilledAtEveryStepOfASetWithTables(t *testing.T) {
	want := newReference(t, users, tablesAdam)
	after := [][]float32{want.values(everyID(300))}
	for step := 1; step <= 3; step++ {
		ids, grads := tableStep(users, step)
		want.push(t, 0, uint64(step), ids, grads)
		after = append(after, want.values(everyID(300)))
	}
	train := func(ctx context.Context, b *book, take func() error) error {
		cfg := tablesConfig
		cfg.Tables, cfg.Addrs, cfg.Log = []params.Table{users}, b.complete, quiet()
		c, err := params.Connect(ctx, cfg)
		if err != nil {
			return err
		}
		defer c.Close()
		err = c.Init(ctx, little())
		for step := 1; err == nil && step <= 3; step++ {
			ids, grads := tableStep(users, step)
			if err = c.PushRows(ctx, "users", uint64(step), 1, ids, grads); err == nil {
				err = take()
			}
		}
		return err
	}
	killedAtEveryStepOfSets(t, &storageBackend{}, 0, 25, train, func(what string, b *book, steps int) {
		cfg := tablesConfig
		cfg.Tables = []params.Table{users}
		c := connect(t, b, cfg)
		mustInit(t, c, little())
		if got := rowsOf(t, c, users, everyID(300), 0); !slices.Equal(got, after[steps]) {
			t.Fatalf("%s: other rows than after %d pushes", what, steps)
		}
	})
}

// joins compares the rows that a set has for tools.
func (j *tablesJob) joins(t testing.TB, dir string, text []byte, pushes int) {
	t.Helper()
	set, err := checkpoint.ParseSet(text)
	if err != nil {
		t.Fatal(err)
	}
	place, err := storage.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer place.Close()
	parts, err := checkpoint.Store{Place: place}.Open(t.Context(), set)
	if err != nil {
		t.Fatal(err)
	}
	m := checkpoint.Join(parts, false)
	for k, table := range bothTables {
		rows, err := m.Rows(k)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := m.RowCount(k); err != nil || n != len(rows.IDs) || n != j.want[k].Rows() || !slices.IsSorted(rows.IDs) {
			t.Errorf("table %q: %d rows, %v, and %d ids, expected %d", table.Name, n, err, len(rows.IDs), j.want[k].Rows())
		}
		for i, id := range rows.IDs {
			if at := int(id+3) * table.Dim; !slices.Equal(rows.Values(i, 0), j.after[k][pushes][at:at+table.Dim]) {
				t.Fatalf("table %q has another row of id %d", table.Name, id)
			}
		}
	}
}

// A set of two servers with tables, one with all rows or one with what changed since, loads onto three and onto one: the same
// bits, optimizer and steps of trainers too.
func TestTablesOntoAnotherNumberOfServers(t *testing.T) {
	onEachBackend(t, tablesOntoAnotherNumberOfServers)
}

func tablesOntoAnotherNumberOfServers(t *testing.T, g *storageBackend) {
	for _, servers := range []int{3, 1} {
		t.Run(fmt.Sprint(servers), func(t *testing.T) {
			dir, files := g.newDir(t)
			j := newTablesJob(t, dir)
			var set []byte
			steps := 0
			for full := ""; ; full = manifestOf(t, files, set, 0).Rows[0].Full.Name {
				steps++
				j.push(t)
				set = j.mustTake(t)
				rows := manifestOf(t, files, set, 0).Rows[0]
				if rows.Delta != nil && rows.Full.Name == full && steps > 2 { // relates to a full segment with rows
					break
				}
				if steps == 20 {
					t.Fatal("no set has a delta")
				}
			}
			j.joins(t, dir, set, steps)
			j.push(t)
			j.restart(t, dir, servers, set, steps)
			j.send(t, steps)
			j.holds(t, "a repeated push", steps)
			j.send(t, steps+1)
			j.holds(t, "the next push", steps+1)
			set = j.mustTake(t)
			if rows := manifestOf(t, files, set, 0).Rows[0]; rows.Delta != nil {
				t.Errorf("the first set of a start relates to %s: expected a full segment", rows.Full.Name)
			}
			j.restart(t, dir, 2, set, steps+1)
			j.send(t, steps+1)
			j.holds(t, "a repeated push, and back", steps+1)
		})
	}
}

// The first set after a rollback has all rows: the rows differ from the last full checkpoint, and the changes between the two are
// unknown.
func TestSetsAfterARewindHaveAllRows(t *testing.T) {
	dir := t.TempDir()
	j := newTablesJob(t, dir)
	var set []byte
	take := func() bool {
		j.push(t)
		set = j.mustTake(t)
		return manifestOf(t, dir, set, 0).Rows[0].Delta != nil
	}
	sets := 0
	for full := false; sets < 6 || !full; sets++ { // without a rollback the next set has a delta
		full = !take()
	}
	j.push(t) // no set has it
	j.epoch++
	if err := j.cluster.client.Rollback(within(t), j.term, j.epoch, set, nil); err != nil {
		t.Fatal(err)
	}
	config := tablesConfig
	config.Incarnation, config.JobEpoch = 8, j.epoch
	j.client = connectTables(t, j.book, config)
	j.holds(t, "gone back", sets)
	j.send(t, sets+1)
	set = j.mustTake(t)
	for k, rows := range manifestOf(t, dir, set, 0).Rows {
		if rows.Delta != nil {
			t.Errorf("table %d: the first set after a rollback relates to %s: expected a full segment", k, rows.Full.Name)
		}
	}
	j.leave(t)
	j.cluster = startCluster(t, dir, 2, set)
	config.JobEpoch = 0 // any
	j.client = connectTables(t, j.book, config)
	j.holds(t, "begun from the next set", sets+1)
}

// F52: if a file of a table or of a segment is damaged, all servers wait for another set. The segments of a kept set stay as long
// as that set, and no others do.
func TestDamagedTableOfASet(t *testing.T) { onEachBackend(t, damagedTableOfASet) }

func damagedTableOfASet(t *testing.T, g *storageBackend) {
	dir, files := g.newDir(t)
	j := newTablesJob(t, dir)
	sets := [][]byte{nil}
	rows := func(set int) checkpoint.Rows { return manifestOf(t, files, sets[set], 1).Rows[0] }
	newest := 0
	for newest < 4 || rows(newest).Delta != nil || rows(newest-1).Delta == nil { // the newest set has a full segment, the previous set a delta
		j.push(t)
		sets = append(sets, j.mustTake(t))
		if newest++; newest == 20 {
			t.Fatal("no set has a delta")
		}
	}
	var want []string
	for _, set := range sets[newest-1:] {
		for _, table := range manifestOf(t, files, set, 1).Rows {
			for _, segment := range table.Segments() {
				want = append(want, segment.Name)
			}
		}
	}
	slices.Sort(want)
	want = slices.Compact(want)
	found, err := filepath.Glob(filepath.Join(files, "ps-1", "*-table-*"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range found {
		found[i] = filepath.Base(found[i])
	}
	if !slices.Equal(found, want) {
		t.Errorf("found segments %v, expected those of the two newest sets: %v", found, want)
	}
	damageFile(t, filepath.Join(files, "ps-1", rows(newest).Full.Name, "exp_avg.safetensors"))
	j.leave(t)
	c := startCluster(t, dir, 2, sets[newest])
	wantUnrestored(t, "a damaged segment", c, rows(newest).Full.Name, "exp_avg.safetensors")
	c.leave(t)
	j.cluster = startCluster(t, dir, 2, sets[newest-1])
	j.client = connectTables(t, j.book, tablesConfig)
	j.holds(t, "the set before it", newest-1)
	j.leave(t)
	damageFile(t, filepath.Join(files, "ps-1", rows(newest-1).Full.Name, "rows.safetensors"))
	wantUnrestored(t, "a damaged full segment of a delta", startCluster(t, dir, 2, sets[newest-1]), rows(newest-1).Full.Name, "rows.safetensors")
}

func manifestOf(t testing.TB, dir string, text []byte, shard int) *checkpoint.Manifest {
	t.Helper()
	set, err := checkpoint.ParseSet(text)
	if err != nil {
		t.Fatal(err)
	}
	m, err := checkpoint.Store{Place: checkpoint.Disk(dir)}.Shard(shard).Manifest(t.Context(), set.Shards[shard].Generation)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func damageFile(t testing.TB, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-1] ^= 1
	write(t, path, data)
}

// The hash key of ids comes from the job when tables start. Checkpoints carry the key to another number of servers and to another
// job. A job with an older checkpoint continues without a key.
func TestTableKeyGoesWithTheCheckpoint(t *testing.T) {
	first, second := table.Key{1, 2}, table.Key{3, 4}
	for name, key := range map[string]table.Key{"a key": first, "no key": {}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			c := startClusterOf(t, dir, 2, pserver.JobState{TableKey: key})
			cfg := tablesConfig
			cfg.Tables = []params.Table{users}
			want := newReference(t, users, tablesAdam)
			check := func(c *cluster, servers, step int) {
				t.Helper()
				client := connect(t, c.book, cfg)
				mustInit(t, client, little())
				if got := rowsOf(t, client, users, everyID(300), 0); !slices.Equal(got, want.values(everyID(300))) {
					t.Fatalf("%d servers have other rows than after %d pushes", servers, step-1)
				}
				ids, grads := tableStep(users, step)
				must(t, client.PushRows(within(t), users.Name, uint64(step), 1, ids, grads))
				want.push(t, 0, uint64(step), ids, grads)
				if got := rowsOf(t, client, users, everyID(300), 0); !slices.Equal(got, want.values(everyID(300))) {
					t.Fatalf("%d servers have other rows than after %d pushes", servers, step)
				}
				if got := heldKey(t, c.book); got != key {
					t.Fatalf("the tables of %d servers have key %v, expected %v", servers, got, key)
				}
			}
			check(c, 2, 1)
			for i, servers := range []int{2, 3, 1} {
				set := c.mustTake(t)
				c.leave(t)
				c = startClusterOf(t, dir, servers, pserver.JobState{LatestSet: set, TableKey: second})
				check(c, servers, i+2)
			}
		})
	}
}

// heldKey is the key of the first table, as the first server describes it.
func heldKey(t testing.TB, b *book) table.Key {
	t.Helper()
	d, err := describe(t, b).Describe(within(t), &pb.DescribeRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return table.KeyOf(d.GetPlacement().GetTables()[0].GetKey())
}

// describe returns the control service of the first server.
func describe(t testing.TB, b *book) pb.ParameterServerClient {
	t.Helper()
	addrs, err := b.complete(within(t))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///"+addrs[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return pb.NewParameterServerClient(conn)
}
