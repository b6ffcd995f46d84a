package pserver_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"trainmaster/master/shards"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver"
	"trainmaster/pserver/placement"
	"trainmaster/trainer/params"
)

// slotsJob is two servers with tables, two trainers, who hear of moves by the answers to what they send, and a leader that moves slots.
type slotsJob struct {
	*cluster
	clients []*params.Client
	want    []*reference
	steps   [2]uint64
	placer  *shards.Client
	stored  []byte
	term    uint64
}

const slotIDs = 3000 // some in each slot

func newSlotsJob(t testing.TB, dir string) *slotsJob {
	t.Helper()
	j := &slotsJob{cluster: startCluster(t, dir, 2, nil), term: 1}
	for _, table := range bothTables {
		j.want = append(j.want, newReference(t, table, tablesAdam))
	}
	j.connect(t)
	return j
}

func (j *slotsJob) connect(t testing.TB) {
	j.placer, j.clients = newPlacer(t, j.book), nil
	for who := range j.steps {
		j.clients = append(j.clients, connectTables(t, j.book, params.Config{Mode: params.Async, Optimizer: tablesAdam, Ordinal: uint32(who), Incarnation: uint64(7 + who)}))
	}
}

// push pushes a trainer's next step.
func (j *slotsJob) push(t testing.TB, who int) {
	t.Helper()
	j.steps[who]++
	for k, table := range bothTables {
		ids, grads := j.batch(who, table)
		j.want[k].push(t, uint32(who), j.steps[who], ids, grads)
	}
	j.send(t, who)
}

func (j *slotsJob) batch(who int, table params.Table) (ids []int64, grads []float32) {
	return rowBatch(j.steps[who]*2+uint64(who), slotIDs, table.Dim)
}

// send sends a trainer's last step, perhaps again.
func (j *slotsJob) send(t testing.TB, who int) {
	t.Helper()
	for _, table := range bothTables {
		ids, grads := j.batch(who, table)
		if err := j.clients[who].PushRows(within(t), table.Name, j.steps[who], 1, ids, grads); err != nil {
			t.Fatal(err)
		}
	}
}

// holds compares what the servers have, by look-ups and by a scan, with the tables of one process that had each push once.
func (j *slotsJob) holds(t testing.TB, what string) {
	t.Helper()
	for who, c := range j.clients {
		for k, table := range bothTables {
			want := j.want[k].values(everyID(slotIDs))
			if got := rowsOf(t, c, table, everyID(slotIDs), 0); !slices.Equal(got, want) {
				t.Fatalf("%s: trainer %d looks other rows of %q up than those of one table", what, who, table.Name)
			}
			seen := map[int64]bool{}
			if err := c.Scan(within(t), table.Name, func(ids []int64, values []float32) error {
				for i, id := range ids {
					if seen[id] || !slices.Equal(values[i*table.Dim:(i+1)*table.Dim], want[int(id+3)*table.Dim:int(id+4)*table.Dim]) {
						t.Fatalf("%s: the scan of trainer %d has another row of id %d of %q, or has it twice", what, who, id, table.Name)
					}
					seen[id] = true
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if len(seen) != j.want[k].Rows() {
				t.Fatalf("%s: the scan of %q has %d rows, expected %d", what, table.Name, len(seen), j.want[k].Rows())
			}
		}
	}
}

// resize sets another goal.
func (j *slotsJob) resize(t testing.TB, servers int) {
	t.Helper()
	stored, err := j.placer.Resize(within(t), j.stored, servers)
	if err != nil {
		t.Fatal(err)
	}
	j.stored = stored
	j.tell(t, j.stored)
}

func (j *slotsJob) tell(t testing.TB, stored []byte) {
	t.Helper()
	j.book.mu.Lock()
	j.book.job.Placement = stored
	j.book.mu.Unlock()
	if err := j.placer.Tell(within(t), j.term, stored); err != nil {
		t.Fatal(err)
	}
	j.stored = stored
}

// prepare freezes and copies the next step; nil when there is none before the last server would end.
func (j *slotsJob) prepare(t testing.TB) []byte {
	t.Helper()
	next, err := j.placer.Move(within(t), j.term, j.stored)
	if err != nil {
		t.Fatal(err)
	}
	if next == nil || j.layoutOf(t, next).Shards < 2 {
		return nil
	}
	return next
}

func (j *slotsJob) layoutOf(t testing.TB, stored []byte) *placement.Layout {
	t.Helper()
	l, err := placement.ParseLayout(stored)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// slotsOf counts the slots of all tables on a shard.
func (j *slotsJob) slotsOf(t testing.TB, shard uint32) (n int) {
	for _, owners := range j.layoutOf(t, j.stored).Slots {
		for _, owner := range owners {
			if owner == shard {
				n++
			}
		}
	}
	return n
}

// What moves is all that an update needs: rows, moments, their numbers of updates, the clock by which rows expire, who waits to be
// admitted, and the steps of both trainers. Slots go to one server and back, and after each step, of some slots, both push, also again.
func TestMovedSlotsGoOnBitByBit(t *testing.T) {
	j := newSlotsJob(t, t.TempDir())
	j.push(t, 0)
	j.push(t, 1)
	moved := 0
	for _, goal := range []int{1, 2} {
		j.resize(t, goal)
		for next := j.prepare(t); next != nil; next = j.prepare(t) {
			j.tell(t, next)
			moved++
			j.send(t, moved%2)
			j.push(t, 1-moved%2)
			j.holds(t, "after a move")
		}
		if want := map[int]int{1: 0, 2: 1024}[goal]; j.slotsOf(t, 1) != want {
			t.Errorf("%d slots are on the second server, of two tables: expected %d", j.slotsOf(t, 1), want)
		}
	}
	if moved < 8 {
		t.Errorf("%d steps: expected at least 8 of at most 256 slots", moved)
	}
}

// A leader that is followed by another one, wherever it stands, changes nothing any more: the next one ends its move, by what is
// committed, and each push that waited meanwhile is applied once.
func TestLeadersFollowWhileSlotsMove(t *testing.T) {
	j := newSlotsJob(t, t.TempDir())
	j.push(t, 0)
	j.resize(t, 1)
	waiting := func(what string, end func()) { // both push while the move is at that point
		done := make(chan struct{})
		for who := range j.steps {
			j.steps[who]++
			for k, table := range bothTables {
				ids, grads := j.batch(who, table)
				j.want[k].push(t, uint32(who), j.steps[who], ids, grads)
			}
		}
		go func() {
			defer close(done)
			for who := range j.steps {
				j.send(t, who)
			}
		}()
		select {
		case <-done:
			t.Fatalf("%s: pushes to slots on their way went through", what)
		case <-time.After(20 * time.Millisecond):
		}
		end()
		<-done
		j.holds(t, what)
	}
	next := j.prepare(t)
	for next != nil && j.slotsOf(t, 1) == len(j.layoutOf(t, next).Slots)*512 && slices.Equal(j.layoutOf(t, next).Slots[0], j.layoutOf(t, j.stored).Slots[0]) {
		j.tell(t, next) // a block first
		next = j.prepare(t)
	}
	waiting("frozen and copied, not committed", func() {
		j.term++
		j.tell(t, j.stored)
	})
	j.term--
	if _, err := j.placer.Move(within(t), j.term, j.stored); err == nil || !strings.Contains(err.Error(), "the move is over") {
		t.Errorf("a leader that was followed by another one moves slots: %v", err)
	}
	j.term++
	next = j.prepare(t)
	waiting("copied again, after pushes, and committed", func() { j.tell(t, next) })
	next = j.prepare(t)
	waiting("committed, and the destination alone heard of it", func() {
		addrs, err := j.book.complete(within(t))
		if err != nil {
			t.Fatal(err)
		}
		conn, err := grpc.NewClient("passthrough:///"+addrs[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		destination := pb.NewParameterServerClient(conn)
		d, err := destination.Describe(within(t), &pb.DescribeRequest{})
		if err != nil {
			t.Fatal(err)
		}
		layout := j.layoutOf(t, next)
		given := d.GetPlacement()
		given.Epoch, given.Owners, given.SlotOwners = layout.Epoch, layout.Owners, slices.Concat(layout.Slots[0], layout.Slots[1])
		if _, err := destination.SetPlacement(within(t), &pb.SetPlacementRequest{Move: &pb.Move{Epoch: layout.Epoch, Term: j.term}, Model: d.GetModel(), Placement: given}); err != nil {
			t.Fatal(err)
		}
		j.term++
		j.tell(t, next)
	})
}

// movedAfterSets is a job with two sets, the second one of changes, and moves after it.
func movedAfterSets(t *testing.T, dir string) (j *slotsJob, set []byte, values [][]float32) {
	j = newSlotsJob(t, dir)
	j.push(t, 0)
	j.mustTake(t)
	j.push(t, 1)
	set = j.mustTake(t)
	if m := manifestOf(t, dir, set, 0); m.TablesBase == nil {
		t.Errorf("set %v has all rows, expected changes", m.Generation)
	}
	values = j.values()
	j.resize(t, 1)
	for range 3 {
		j.tell(t, j.prepare(t))
		j.push(t, 0)
	}
	return j, set, values
}

// A set from before a move, with changes only, loads onto the placement after it.
func TestSetBeforeMovesOfSlots(t *testing.T) {
	dir := t.TempDir()
	j, set, values := movedAfterSets(t, dir)
	j.restart(t, dir, set)
	for k, table := range bothTables {
		if got := rowsOf(t, j.clients[0], table, everyID(slotIDs), 0); !slices.Equal(got, values[k]) {
			t.Errorf("table %q has other rows than the set before the moves", table.Name)
		}
	}
}

// A set after a move has all rows of all shards, also of slots that came since the set before; those after it have changes again. So do
// tools read them.
func TestSetsAfterMovesOfSlots(t *testing.T) {
	dir := t.TempDir()
	j, _, _ := movedAfterSets(t, dir)
	after := j.mustTake(t)
	for shard := range 2 {
		if m := manifestOf(t, dir, after, shard); m.TablesBase != nil {
			t.Errorf("shard %d: the set after a move is based on %v", shard, m.TablesBase)
		}
	}
	j.push(t, 1)
	changes := j.mustTake(t)
	if m := manifestOf(t, dir, changes, 0); m.TablesBase == nil {
		t.Errorf("set %v has all rows, expected changes", m.Generation)
	}
	j.exported(t, dir, changes)
	j.restart(t, dir, changes)
	j.holds(t, "after a restart from the set after the moves")
	j.send(t, 0)
	j.send(t, 1)
	j.holds(t, "repeated pushes")
	j.push(t, 0)
	j.holds(t, "the next push")
}

func (j *slotsJob) values() (list [][]float32) {
	for _, want := range j.want {
		list = append(list, want.values(everyID(slotIDs)))
	}
	return list
}

// restart starts both servers from a set, on the placement that is committed.
func (j *slotsJob) restart(t testing.TB, dir string, set []byte) {
	t.Helper()
	j.leave(t)
	b := newBook(2)
	b.job = pserver.JobState{LatestSet: set, Life: time.Now().UnixNano(), Placement: j.stored}
	j.cluster = &cluster{book: b, setTaker: newSetTaker(t, b)}
	for i := range 2 {
		j.servers = append(j.servers, startServer(t, b, i, pserver.Config{CheckpointDir: dir}))
	}
	j.placer = newPlacer(t, b)
	j.term++
	j.tell(t, j.stored)
	j.connect(t)
}

// exported compares the rows that a set has for tools.
func (j *slotsJob) exported(t testing.TB, dir string, set []byte) {
	t.Helper()
	all := &tablesJob{want: j.want}
	for _, want := range j.want {
		all.after = append(all.after, [][]float32{want.values(everyID(slotIDs))})
	}
	all.joins(t, dir, set, 0)
}
