package pserver_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"trainmaster/master/psclient"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/table"
	"trainmaster/trainer/params"
)

// slotsJob is two servers with tables, two trainers, which learn of migrations from the answers to their requests, and a leader that moves slots.
type slotsJob struct {
	*cluster
	clients []*params.Client
	looks   *params.Client // who does nothing but look rows up
	scans   *params.Client // who does nothing but scan
	want    []*reference
	steps   [2]uint64
	placer  *psclient.Client
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
	client := func(ordinal uint32) *params.Client {
		return connectTables(t, j.book, params.Config{Mode: params.Async, Optimizer: tablesAdam, Ordinal: ordinal, Incarnation: uint64(7 + ordinal)})
	}
	j.placer, j.clients, j.looks, j.scans = newPlacer(t, j.book), []*params.Client{client(0), client(1)}, client(2), client(3)
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
	for k, table := range bothTables {
		want := j.want[k].values(everyID(slotIDs))
		for _, c := range append(j.clients, j.looks) {
			if got := rowsOf(t, c, table, everyID(slotIDs), 0); !slices.Equal(got, want) {
				t.Fatalf("%s: other rows of %q are looked up than those of one table", what, table.Name)
			}
		}
		row := func(id int64) []float32 { return want[int(id+3)*table.Dim : int(id+4)*table.Dim] }
		wantScan(t, what, j.scans, table.Name, row, j.want[k].Rows(), func() {})
	}
}

// wantScan wants each of the rows once, with its values. meanwhile is called after each piece.
func wantScan(t testing.TB, what string, c *params.Client, table string, want func(id int64) []float32, rows int, meanwhile func()) {
	t.Helper()
	seen := map[int64]bool{}
	if err := c.Scan(within(t), table, func(ids []int64, values []float32) error {
		for i, id := range ids {
			row := want(id)
			if seen[id] || !slices.Equal(values[i*len(row):(i+1)*len(row)], row) {
				t.Fatalf("%s: the scan has another row of id %d of %q, or has it twice", what, id, table)
			}
			seen[id] = true
		}
		meanwhile()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(seen) != rows {
		t.Fatalf("%s: the scan of %q has %d rows, expected %d", what, table, len(seen), rows)
	}
}

// A scan under which slots move, also the one that it is in the middle of, has each row once.
func TestScanWhileSlotsMove(t *testing.T) {
	wide := params.Table{Name: "wide", Dim: 8000, Init: params.Zeros} // 32 rows in a frame
	const servers = 3
	b := startServers(t, servers, pserver.Config{})
	c := connect(t, b, params.Config{Mode: params.Async, Tables: []params.Table{wide}})
	mustInit(t, c, little())
	var ids []int64
	many := map[uint32]int{100: 40, 140: 40, 180: 40, 1000: 40} // in these slots, several of which are in a frame; in others, one
	for id := int64(0); id < 1<<18; id++ {
		if slot := table.SlotOf(id); many[slot] > 0 || id < 60 {
			many[slot]--
			ids = append(ids, id)
		}
	}
	step := uint64(0)
	for some := range slices.Chunk(ids, 30) {
		step++
		if err := c.PushRows(within(t), wide.Name, step, 1, some, slices.Repeat([]float32{-2}, len(some)*wide.Dim)); err != nil {
			t.Fatal(err)
		}
	}
	placer := newPlacer(t, b)
	goal, steps, calls := 1, 0, 0
	stored := resize(t, b, placer, goal)
	move := func() {
		next, _, err := placer.Move(within(t), 1, stored)
		if err != nil {
			t.Fatal(err)
		}
		if next == nil || !strings.Contains(string(next), fmt.Sprintf(`"shards":%d`, servers)) { // another way
			goal = goal%servers + 1
			if stored, err = placer.Resize(within(t), stored, goal); err != nil {
				t.Fatal(err)
			}
			return
		}
		stored = commitPlacement(t, b, placer, next)
		steps++
	}
	want := func(int64) []float32 { return slices.Repeat([]float32{1}, wide.Dim) }
	for range 12 {
		move() // so that slots of a server are of all numbers
	}
	wantScan(t, "while slots move", c, wide.Name, want, len(ids), func() {
		if calls++; calls%2 == 0 {
			move()
		}
	})
	if steps < 8 {
		t.Errorf("%d steps of moves, expected at least 8", steps)
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
	if err := j.placer.SendPlacement(within(t), j.term, stored); err != nil {
		t.Fatal(err)
	}
	j.stored = stored
}

// prepare freezes and copies the next step; nil when there is none before the last server would end.
func (j *slotsJob) prepare(t testing.TB) []byte {
	t.Helper()
	next, _, err := j.placer.Move(within(t), j.term, j.stored)
	if err != nil {
		t.Fatal(err)
	}
	if next == nil || layoutOf(t, next).Shards < 2 {
		return nil
	}
	return next
}

// slotsOf counts the slots of all tables on a shard.
func (j *slotsJob) slotsOf(t testing.TB, shard uint32) (n int) {
	for _, owners := range layoutOf(t, j.stored).Slots {
		for _, owner := range owners {
			if owner == shard {
				n++
			}
		}
	}
	return n
}

// All that an update needs moves: rows, moments, their numbers of updates, the clock by which rows expire, ids that wait for
// admission, and the steps of both trainers. Slots go to one server and back, and after each step, of some slots, both push, also again.
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
	refused := func() (n uint64) {
		for i := range j.servers {
			n += j.control(t, i).describe(t).GetCounters().GetRefused()
		}
		return n
	}
	waiting := func(what string, end func()) { // both push while the move is at that point
		done, before := make(chan struct{}), refused()
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
			t.Fatalf("%s: pushes to migrating slots were applied", what)
		case <-time.After(20 * time.Millisecond):
		}
		if n := refused(); n > before+4 {
			t.Errorf("%s: %d frames were refused instead of waiting", what, n-before)
		}
		end()
		<-done
		j.holds(t, what)
	}
	next := j.prepare(t)
	for next != nil && j.slotsOf(t, 1) == len(layoutOf(t, next).Slots)*512 && slices.Equal(layoutOf(t, next).Slots[0], layoutOf(t, j.stored).Slots[0]) {
		j.tell(t, next) // a block first
		next = j.prepare(t)
	}
	waiting("frozen and copied, not committed", func() {
		j.term++
		j.tell(t, j.stored)
	})
	j.term--
	if _, _, err := j.placer.Move(within(t), j.term, j.stored); err == nil || !strings.Contains(err.Error(), "migration has ended") {
		t.Errorf("a leader that was followed by another one moves slots: %v", err)
	}
	j.term++
	next = j.prepare(t)
	waiting("copied again, after pushes, and committed", func() { j.tell(t, next) })
	next = j.prepare(t)
	waiting("committed, and only the destination has the placement", func() {
		must(t, j.control(t, 0).place(t, j.term, layoutOf(t, next)))
		j.term++
		j.tell(t, next)
	})
}

// controlOf is the control side of a server.
type controlOf struct{ pb.ParameterServerClient }

func (j *slotsJob) control(t testing.TB, server int) controlOf {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+j.servers[server].addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return controlOf{pb.NewParameterServerClient(conn)}
}

func (c controlOf) describe(t testing.TB) *pb.DescribeReply {
	t.Helper()
	d, err := c.Describe(within(t), &pb.DescribeRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (c controlOf) place(t testing.TB, term uint64, l *placement.Layout) error {
	t.Helper()
	text, err := l.Encode()
	must(t, err)
	_, err = c.SetPlacement(within(t), &pb.SetPlacementRequest{Term: term, Placement: text})
	return err
}

// A server refuses a placement of another model. It ends if the placement gives it slots that it lacks, or has from another migration.
func TestSlotsThatDidNotArrive(t *testing.T) {
	j := newSlotsJob(t, t.TempDir())
	j.push(t, 0)
	j.resize(t, 1)
	next := layoutOf(t, j.prepare(t))
	destination := j.control(t, 0)
	given := *next
	given.Epoch++
	given.Slots = given.Slots[:1]
	if err := destination.place(t, 1, &given); err == nil || !strings.Contains(err.Error(), "slots of 1 tables") {
		t.Errorf("placement with another number of tables: %v", err)
	}
	given.Slots = next.Slots
	if err := destination.place(t, 1, &given); err == nil || !strings.Contains(err.Error(), `assigns slot`) {
		t.Errorf("slots that came for another placement: %v", err)
	}
	if err := j.servers[0].wait(); err == nil || !strings.Contains(err.Error(), "restart the server") {
		t.Errorf("the server ended with %v", err)
	}
}

// movedAfterSets is a job with two sets, the second one of changes, and moves after it.
func movedAfterSets(t *testing.T, dir string) (j *slotsJob, set []byte, values [][]float32) {
	j = newSlotsJob(t, dir)
	j.push(t, 0)
	j.mustTake(t)
	set = j.takeDelta(t, dir)
	values = j.values()
	j.resize(t, 1)
	for range 3 {
		j.tell(t, j.prepare(t))
		j.push(t, 0)
	}
	return j, set, values
}

// takeDelta pushes and takes sets until one has a delta of the first table.
func (j *slotsJob) takeDelta(t *testing.T, dir string) (set []byte) {
	t.Helper()
	for range 4 {
		j.push(t, 1)
		set = j.mustTake(t)
		if manifestOf(t, dir, set, 0).Rows[0].Delta != nil {
			return set
		}
	}
	t.Fatal("no set has a delta")
	return nil
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
		for k, rows := range manifestOf(t, dir, after, shard).Rows {
			if rows.Delta != nil {
				t.Errorf("shard %d, table %d: the set after a move relates to %s: expected a full segment", shard, k, rows.Full.Name)
			}
		}
	}
	changes := j.takeDelta(t, dir)
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
	b.job = pserver.JobState{LatestSet: set, Placement: j.stored}
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
