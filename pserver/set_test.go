package pserver_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"trainmaster/master/psclient"
	"trainmaster/master/pscontrol"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver"
	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/dataport"
	"trainmaster/trainer/params"
)

// setTaker takes sets of checkpoints as a master does, and enters the newest into the book as
// that enters it into etcd.
type setTaker struct {
	book   *book
	client *psclient.Client
	term   uint64
	epoch  uint32 // of the job

	keep     int            // sets
	isClosed bool           // no server gets another set
	steps    map[uint64]int // of trainers, as take counts them, by set
	step     int
}

func newSetTaker(t testing.TB, b *book) *setTaker {
	s := &setTaker{book: b, client: &psclient.Client{Addrs: b.complete, Present: b.complete, Registered: b.complete}, term: 1, epoch: 1, keep: 2, steps: map[uint64]int{}}
	t.Cleanup(func() {
		b.asked.Lock()
		defer b.asked.Unlock()
		s.isClosed = true
		s.client.Close()
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leader = s
	return s
}

func (s *setTaker) begin(ctx context.Context) (pscontrol.Cut, error) {
	of := pscontrol.CutRequest{Term: s.term, Epoch: s.epoch, Number: func(last uint64) uint64 { return last + 1 }}
	job := s.book.state()
	if at, err := s.client.SetAt(job.LatestSet); err == nil && at.JobID == job.ID {
		of.Latest = job.LatestSet
	}
	return s.client.Begin(ctx, of)
}

// about is what the sets say of the job.
func (s *setTaker) about() pscontrol.About {
	job := s.book.state()
	return pscontrol.About{Job: cmp.Or(job.Name, "test"), JobID: job.ID, State: []byte("the state of the job")}
}

// write completes a set and returns its number.
func (s *setTaker) write(ctx context.Context, cut pscontrol.Cut) (uint64, error) {
	text, err := cut.Write(ctx, s.about())
	if err != nil {
		return 0, errors.Join(err, cut.Abort(ctx))
	}
	s.book.mu.Lock()
	s.book.job.LatestSet = text
	s.book.mu.Unlock()
	return cut.Number(), cut.Prune(ctx, s.keep, nil)
}

func (s *setTaker) take(ctx context.Context) (uint64, error) {
	s.book.asked.Lock()
	defer s.book.asked.Unlock()
	return s.takeLocked(ctx)
}

func (s *setTaker) takeLocked(ctx context.Context) (uint64, error) {
	cut, err := s.begin(ctx)
	if err != nil {
		return 0, err
	}
	s.steps[cut.Number()] = s.step
	return s.write(ctx, cut)
}

// takeAfter takes a set after a step.
func (s *setTaker) takeAfter(ctx context.Context) error {
	s.book.asked.Lock()
	defer s.book.asked.Unlock()
	s.step++
	_, err := s.takeLocked(ctx)
	return err
}

// takeWanted takes a set if a server wants one.
func (s *setTaker) takeWanted(ctx context.Context) error {
	s.book.asked.Lock()
	defer s.book.asked.Unlock()
	if s.isClosed {
		return errors.New("the leader is gone")
	}
	states, err := s.client.States(ctx)
	if !slices.ContainsFunc(states, func(s pscontrol.ServerState) bool { return s.WantsSet }) {
		return err
	}
	_, err = s.takeLocked(ctx)
	return err
}

// cluster is a number of servers in this process with one checkpoint directory.
type cluster struct {
	*book
	*setTaker
	servers []*server
}

// startCluster starts servers of a new job instance; latest is the set that etcd names.
func startCluster(t testing.TB, dir string, n int, latest []byte) *cluster {
	t.Helper()
	return startClusterOf(t, dir, n, pserver.JobState{LatestSet: latest})
}

func startClusterOf(t testing.TB, dir string, n int, job pserver.JobState) *cluster {
	t.Helper()
	b := newBook(n)
	b.job = job
	c := &cluster{book: b, setTaker: newSetTaker(t, b)}
	for i := range n {
		c.servers = append(c.servers, startServer(t, b, i, pserver.Config{CheckpointDir: dir}))
	}
	return c
}

// leave ends the servers without a word, as a lost lease does: they save nothing.
func (c *cluster) leave(t testing.TB) {
	t.Helper()
	for _, s := range c.servers {
		s.leave(t)
	}
}

// mustTake takes a set.
func (c *cluster) mustTake(t testing.TB) []byte {
	t.Helper()
	if _, err := c.take(within(t)); err != nil {
		t.Fatal(err)
	}
	return c.state().LatestSet
}

// wantModel compares what the servers hold with a number of equal steps from start.
func wantModel(t testing.TB, what string, b *book, start, grads []params.Tensor, steps int) *params.Client {
	t.Helper()
	c := connect(t, b, params.Config{Mode: params.Async, Optimizer: heavy, Incarnation: 7})
	values := clone(start)
	for i := range values {
		clear(values[i].Data)
	}
	mustInit(t, c, values)
	if err := differ(values, stepped(start, grads, steps)); err != nil {
		t.Fatalf("%s: after %d steps %v", what, steps, err)
	}
	return c
}

func mustPush(t testing.TB, c *params.Client, step uint64, grads []params.Tensor) {
	t.Helper()
	if _, err := c.PushPull(within(t), step, 1, grads, small(constant(0))); err != nil {
		t.Fatal(err)
	}
}

// trainedCluster has two servers with the parameters start, and a client.
func trainedCluster(t testing.TB, dir string, start []params.Tensor) (*cluster, *params.Client) {
	t.Helper()
	return trainedClusterOf(t, dir, start, pserver.JobState{})
}

func trainedClusterOf(t testing.TB, dir string, start []params.Tensor, job pserver.JobState) (*cluster, *params.Client) {
	t.Helper()
	c := startClusterOf(t, dir, 2, job)
	client := connect(t, c.book, params.Config{Mode: params.Async, Optimizer: heavy, Incarnation: 7})
	mustInit(t, client, clone(start))
	return c, client
}

// F53 and F52: a checkpoint that is newer than the set in etcd does not count, whether it belongs to an unfinished set or to one
// server. If a file of the named set is damaged, all servers wait until etcd names another set.
func TestOnlyACompleteSetLoads(t *testing.T) { onEachBackend(t, onlyACompleteSetLoads) }

func onlyACompleteSetLoads(t *testing.T, g *storageBackend) {
	dir, files := g.newDir(t)
	start, grads := small(random(1)), small(random(2))
	c, client := trainedCluster(t, dir, start)
	mustPush(t, client, 1, grads)
	first := c.mustTake(t)
	mustPush(t, client, 2, grads)
	second := c.mustTake(t)
	mustPush(t, client, 3, grads)

	cut, err := c.begin(within(t))
	if err != nil {
		t.Fatal(err)
	}
	name := &pb.Cut{Number: cut.Number(), Term: c.term}
	if _, err := control(t, c.servers[0].addr).WriteCut(within(t), &pb.WriteCutRequest{Cut: name}); err != nil {
		t.Fatal(err)
	}
	c.leave(t)

	c = startCluster(t, dir, 2, second)
	wantModel(t, "all killed", c.book, start, grads, 2)
	c.leave(t)
	c = startCluster(t, dir, 2, nil)
	wantModel(t, "etcd is empty", c.book, start, grads, 2)
	c.leave(t)

	damage(t, filepath.Join(files, "ps-1"), second, 1)
	c = startCluster(t, dir, 2, second)
	wantUnrestored(t, "a damaged set", c, checkpoint.WeightsFile)
	c.name(first)
	wantModel(t, "the set before it", c.book, start, grads, 1)
	c.leave(t)
	damage(t, filepath.Join(files, "ps-0"), first, 0)
	c = startCluster(t, dir, 2, second)
	wantUnrestored(t, "both sets are damaged", c, nameOf(t, second))
	c.name(first)
	wantUnrestored(t, "both sets are damaged", c, "")
}

// nameOf is how messages name a set.
func nameOf(t testing.TB, text []byte) string {
	t.Helper()
	set, err := checkpoint.ParseSet(text)
	if err != nil {
		t.Fatal(err)
	}
	return set.String()
}

// damage changes a byte of a shard's weights in a set.
func damage(t testing.TB, folder string, set []byte, shard int) {
	t.Helper()
	s, err := checkpoint.ParseSet(set)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(folder, s.Shards[shard].Generation.String(), checkpoint.WeightsFile)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-5] ^= 1
	write(t, path, data)
}

// A server that is restarted while the others run loses nothing, nor do servers that are all stopped: each of them ends with a set.
func TestStoppedServersContinue(t *testing.T) { onEachBackend(t, stoppedServersContinue) }

func stoppedServersContinue(t *testing.T, g *storageBackend) {
	dir, _ := g.newDir(t)
	start, grads := small(random(1)), small(random(2))
	c, client := trainedCluster(t, dir, start)
	mustPush(t, client, 1, grads)
	c.mustTake(t)
	mustPush(t, client, 2, grads)
	c.servers[1].stop()
	if err := c.servers[1].wait(); err != nil {
		t.Fatal(err)
	}
	c.servers[1] = startServer(t, c.book, 1, pserver.Config{CheckpointDir: dir})
	client = wantModel(t, "one server stopped", c.book, start, grads, 2)
	mustPush(t, client, 3, grads)
	for _, s := range c.servers {
		s.stop()
		if err := s.wait(); err != nil {
			t.Fatal(err)
		}
	}
	c = startCluster(t, dir, 2, c.state().LatestSet)
	client = wantModel(t, "all stopped", c.book, start, grads, 3)
	mustPush(t, client, 3, grads) // repeated
	wantModel(t, "a repeated push", c.book, start, grads, 3)
}

// F163: servers are stopped one after the other, before any of them is started again. The set of the second server has its updates since then,
// and the part of the first server.
func TestServersStoppedOneAfterTheOther(t *testing.T) {
	onEachBackend(t, serversStoppedOneAfterTheOther)
}

func serversStoppedOneAfterTheOther(t *testing.T, g *storageBackend) {
	dir, _ := g.newDir(t)
	start, grads := small(random(1)), small(random(2))
	c, client := trainedCluster(t, dir, start)
	mustPush(t, client, 1, grads)
	c.asked.Lock()
	c.client.Present = c.present
	c.asked.Unlock()
	stop := func(index int) {
		t.Helper()
		c.servers[index].stop()
		if err := c.servers[index].wait(); err != nil {
			t.Fatal(err)
		}
	}
	stop(0)
	applied := func() uint64 {
		d, err := control(t, c.servers[1].addr).Describe(within(t), &pb.DescribeRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return d.GetCounters().GetBlocksPushed()
	}
	before, blocks := applied(), uint64(0)
	pushed := make(chan error, 1)
	go func() {
		_, err := client.PushPull(within(t), 2, 1, grads, small(constant(0)))
		pushed <- err
	}()
	for blocks == 0 {
		blocks = applied() - before
	}
	for range 3 { // while server 0 is absent, sets replace each other
		c.mustTake(t)
	}
	stop(1)
	for i := range c.servers {
		c.servers[i] = startServer(t, c.book, i, pserver.Config{CheckpointDir: dir})
	}
	if err := <-pushed; err != nil {
		t.Fatal(err)
	}
	wantModel(t, "two servers stopped one after the other", c.book, start, grads, 2)
}

// A set that is not named in etcd counts only if etcd names no set.
func TestUnreferencedCheckpointSet(t *testing.T) { onEachBackend(t, unreferencedCheckpointSet) }

func unreferencedCheckpointSet(t *testing.T, g *storageBackend) {
	dir, files := g.newDir(t)
	start, grads := small(random(1)), small(random(2))
	c, client := trainedCluster(t, dir, start)
	var named []byte
	for step := uint64(1); step <= 2; step++ {
		mustPush(t, client, step, grads)
		named = c.mustTake(t)
	}
	mustPush(t, client, 3, grads)
	cut, err := c.begin(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cut.Write(within(t), pscontrol.About{Job: "test"}); err != nil {
		t.Fatal(err)
	}
	c.leave(t)
	restart := func(what string, latest []byte, steps int) {
		t.Helper()
		c := startCluster(t, dir, 2, latest)
		wantModel(t, what, c.book, start, grads, steps)
		c.leave(t)
	}
	restart("the set that is named", named, 2)
	damage(t, filepath.Join(files, "ps-0"), named, 0)
	c = startCluster(t, dir, 2, named)
	wantUnrestored(t, "named set damaged, unreferenced set complete", c, nameOf(t, named))
	c.leave(t)
	restart("none is named", nil, 3)
}

// Each server of a rolling restart ends with a set of all servers, which all load when they are killed later.
func TestRollingRestart(t *testing.T) { onEachBackend(t, rollingRestart) }

func rollingRestart(t *testing.T, g *storageBackend) {
	dir, _ := g.newDir(t)
	start, grads := small(random(1)), small(random(2))
	c, client := trainedCluster(t, dir, start)
	mustPush(t, client, 1, grads)
	for i := range c.servers {
		mustPush(t, client, uint64(2+i), grads)
		c.servers[i].stop()
		if err := c.servers[i].wait(); err != nil {
			t.Fatal(err)
		}
		c.servers[i] = startServer(t, c.book, i, pserver.Config{CheckpointDir: dir})
	}
	client = wantModel(t, "both stopped, one after the other", c.book, start, grads, 3)
	mustPush(t, client, 4, grads)
	latest := c.state().LatestSet
	c.leave(t)
	c = startCluster(t, dir, 2, latest)
	wantModel(t, "then all killed", c.book, start, grads, 3)
}

// A server that is killed while others run takes its part of the latest set, not its checkpoint for an
// unfinished set.
func TestKilledServerTakesItsPart(t *testing.T) { onEachBackend(t, killedServerTakesItsPart) }

func killedServerTakesItsPart(t *testing.T, g *storageBackend) {
	dir, _ := g.newDir(t)
	start, grads := small(random(1)), small(random(2))
	c, client := trainedCluster(t, dir, start)
	mustPush(t, client, 1, grads)
	set, err := checkpoint.ParseSet(c.mustTake(t))
	if err != nil {
		t.Fatal(err)
	}
	mustPush(t, client, 2, grads)
	cut, err := c.begin(within(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range c.servers {
		if _, err := control(t, s.addr).WriteCut(within(t), &pb.WriteCutRequest{Cut: &pb.Cut{Number: cut.Number(), Term: c.term}}); err != nil {
			t.Fatal(err)
		}
	}
	c.servers[1].leave(t)
	next := startServer(t, c.book, 1, pserver.Config{CheckpointDir: dir})
	mustInit(t, connect(t, c.book, params.Config{Mode: params.Async, Optimizer: heavy, Ordinal: 9}), small(constant(0)))
	reply, err := control(t, next.addr).Describe(within(t), &pb.DescribeRequest{})
	if want := set.Shards[1].Generation.String(); err != nil || reply.GetCheckpoint() != want {
		t.Errorf("it started from %q, %v; expected %q", reply.GetCheckpoint(), err, want)
	}
}

// A set of two servers loads onto three and onto one, with the same bits, optimizer state and applied
// pushes, and training continues.
func TestSetOntoAnotherNumberOfServers(t *testing.T) { onEachBackend(t, setOntoAnotherNumberOfServers) }

func setOntoAnotherNumberOfServers(t *testing.T, g *storageBackend) {
	for _, n := range []int{3, 1} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			dir, _ := g.newDir(t)
			start, grads := small(random(1)), small(random(2))
			c, client := trainedCluster(t, dir, start)
			mustPush(t, client, 1, grads)
			mustPush(t, client, 2, grads)
			set := c.mustTake(t)
			mustPush(t, client, 3, grads)
			c.leave(t)

			c = startCluster(t, dir, n, set)
			client = wantModel(t, "restored", c.book, start, grads, 2)
			mustPush(t, client, 2, grads)
			wantModel(t, "a repeated push", c.book, start, grads, 2)
			mustPush(t, client, 3, grads)
			wantModel(t, "the next push", c.book, start, grads, 3)
			set = c.mustTake(t)
			c.leave(t)

			c = startCluster(t, dir, 2, set)
			wantModel(t, "and back", c.book, start, grads, 3)
		})
	}
}

// An asynchronous server applies no push before etcd names a set with its first parameters: servers that are killed before have
// initial parameters in common.
func TestPushesWaitForFirstSet(t *testing.T) {
	b := newBook(1)
	b.noLeader = true
	startServer(t, b, 0, pserver.Config{CheckpointDir: t.TempDir(), Limits: dataport.Limits{PullWait: 10 * time.Millisecond}})
	start, grads := small(random(1)), small(random(2))
	c := connect(t, b, params.Config{Mode: params.Async, Optimizer: heavy, Incarnation: 7})
	mustInit(t, c, clone(start))
	brief, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := c.PushPull(brief, 1, 1, grads, clone(start)); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a push before the first set: %v, expected it to wait", err)
	}
	values := clone(start)
	if _, err := c.Pull(within(t), values, 0); err != nil || differ(values, start) != nil {
		t.Errorf("parameters before the first set: %v, %v", err, differ(values, start))
	}
	if _, err := newSetTaker(t, b).take(within(t)); err != nil {
		t.Fatal(err)
	}
	mustPush(t, c, 1, grads)
	wantModel(t, "the same push after the first set", b, start, grads, 1)
}

// The rules of cuts at one server.
func TestCuts(t *testing.T) {
	dir, b := t.TempDir(), newBook(1)
	b.noLeader = true
	s := startServer(t, b, 0, pserver.Config{CheckpointDir: dir, CutLimit: 20 * time.Millisecond})
	mustInit(t, connect(t, b, params.Config{Mode: params.Async}), small(random(1)))
	server := control(t, s.addr)
	begin := func(number, term uint64) error {
		_, err := server.BeginCut(within(t), &pb.BeginCutRequest{Cut: &pb.Cut{Number: number, Term: term}, JobEpoch: 1})
		return err
	}
	write := func(number, term uint64) (*pb.WriteCutReply, error) {
		return server.WriteCut(within(t), &pb.WriteCutRequest{Cut: &pb.Cut{Number: number, Term: term}})
	}
	wantOver := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "cut is closed") && !strings.Contains(err.Error(), "no such cut") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := begin(5, 2); err != nil {
		t.Fatal(err)
	}
	for err := error(nil); err == nil; { // it is never collected
		if err = begin(5, 2); err != nil {
			wantOver("an uncollected cut", err)
		}
	}
	_, err := write(5, 2)
	wantOver("writing it", err)

	s.leave(t)
	s = startServer(t, b, 0, pserver.Config{CheckpointDir: dir})
	mustInit(t, connect(t, b, params.Config{Mode: params.Async}), small(random(1)))
	server = control(t, s.addr)
	for range 2 { // the same again is the same
		if err := begin(7, 2); err != nil {
			t.Fatal(err)
		}
	}
	wantOver("a lower number", begin(6, 2))
	wantOver("an older term", begin(8, 1))
	wantOver("the same number of another term", begin(7, 3))
	if _, err := server.BeginCut(within(t), &pb.BeginCutRequest{Cut: &pb.Cut{Number: 8, Term: 2}}); err == nil {
		t.Error("a cut of an older job epoch began")
	}
	one, err := write(7, 2)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := write(7, 2); err != nil || again.GetSha256() != one.GetSha256() || again.GetSequence() != one.GetSequence() {
		t.Errorf("written again: %v, %v, expected %v", again, err, one)
	}
	if err := begin(8, 2); err != nil {
		t.Fatal(err)
	}
	if _, err := server.AbortCut(within(t), &pb.AbortCutRequest{Cut: &pb.Cut{Number: 8, Term: 2}}); err != nil {
		t.Fatal(err)
	}
	_, err = write(8, 2)
	wantOver("an aborted cut", err)
	_, err = server.WriteSet(within(t), &pb.WriteSetRequest{Cut: &pb.Cut{Number: 7, Term: 2}, Set: []byte("{}")})
	wantOver("a set of an older cut", err)
}

// F50: a server is killed after every single step of writing sets. Then all servers start from one
// cut: the set that etcd names, or else the newest set on the disk.
func TestKilledAtEveryStepOfASet(t *testing.T) { onEachBackend(t, killedAtEveryStepOfASet) }

func killedAtEveryStepOfASet(t *testing.T, g *storageBackend) {
	start, grads := tiny(random(1)), tiny(random(2))
	train := func(ctx context.Context, b *book, take func() error) error {
		c, err := params.Connect(ctx, params.Config{Mode: params.Async, Optimizer: heavy, Incarnation: 7, Addrs: b.complete, Log: quiet()})
		if err != nil {
			return err
		}
		defer c.Close()
		values := clone(start)
		err = c.Init(ctx, values)
		for step := uint64(1); err == nil && step <= 3; step++ {
			if _, err = c.PushPull(ctx, step, 1, grads, values); err == nil {
				err = take()
			}
		}
		return err
	}
	for index, who := range []string{"the first server", "the second server", "the leader"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			killedAtEveryStepOfSets(t, g, index, 12, train, func(what string, b *book, steps int) { wantModel(t, what, b, start, grads, steps) })
		})
	}
}

// killedAtEveryStepOfSets kills one of two servers, or (2) the leader, after every step from the given one on. Earlier steps belong
// to the first parameters. A trainer takes a set after each of its steps; check compares the state of the next servers. Steps of the
// leader are steps of the first server, until which the leader runs.
func killedAtEveryStepOfSets(t *testing.T, g *storageBackend, whom, from int, train func(context.Context, *book, func() error) error, check func(what string, b *book, steps int)) {
	for dieAt, done := from, false; !done; dieAt += killStride {
		b := newBook(2)
		dir, files := g.newDir(t)
		var servers []*child
		for i := range 2 {
			config := childConfig{Dir: dir, Index: i}
			if i == whom {
				config.DieAt = dieAt
			}
			servers = append(servers, startChild(t, b, config))
		}
		victim := servers[whom%2]
		died := func() bool { return victim.ended() }
		if whom == 2 {
			died = func() bool { return victim.count() >= dieAt }
		}
		taken := newSetTaker(t, b)
		trainUntil(t, died, func(ctx context.Context) error {
			return train(ctx, b, func() error { return taken.takeAfter(ctx) })
		})
		done = !died()
		for _, server := range servers {
			server.kill()
		}
		if done {
			t.Logf("%d steps, the last is %q", dieAt-1, last(victim.steps))
		}

		want := 0
		if latest := b.state().LatestSet; latest != nil {
			set, err := checkpoint.ParseSet(latest)
			if err != nil {
				t.Fatal(err)
			}
			want = taken.steps[set.Number]
		} else if numbers, err := (checkpoint.Store{Place: checkpoint.Disk(files)}).Sets(t.Context()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		} else if len(numbers) > 0 {
			want = taken.steps[numbers[0]]
		} else {
			continue // before the first set
		}
		heirs := []*server{startServer(t, b, 0, pserver.Config{CheckpointDir: dir}), startServer(t, b, 1, pserver.Config{CheckpointDir: dir})}
		check(fmt.Sprintf("killed at step %d, after %q", dieAt, last(victim.steps)), b, want)
		for _, heir := range heirs {
			heir.leave(t)
		}
	}
}

// trainUntil trains; an error is expected after a kill.
func trainUntil(t testing.TB, died func() bool, train func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(within(t))
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel()
	watch.Go(func() {
		for ctx.Err() == nil && !died() {
			time.Sleep(time.Millisecond) // interval between checks
		}
		cancel()
	})
	err := train(ctx)
	for limit := time.Now().Add(10 * time.Second); err != nil && !died(); time.Sleep(time.Millisecond) { // interval between checks
		if time.Now().After(limit) {
			t.Fatal(err)
		}
	}
}

const firstLife = "aa000000000000000000000000000000"

// twoLives makes a cluster of one job instance with a set and later updates. The next instance of the job starts from that set or
// from none.
func twoLives(t testing.TB, dir string, next pserver.JobState) (c *cluster, set []byte, start, grads []params.Tensor) {
	t.Helper()
	start, grads = small(random(1)), small(random(2))
	first, client := trainedClusterOf(t, dir, start, pserver.JobState{Name: "test", ID: firstLife, Epoch: 4})
	first.asked.Lock()
	first.keep = 9
	first.asked.Unlock()
	mustPush(t, client, 1, grads)
	if err := first.client.Retire(within(t), 1, [16]byte{0xaa}, 5, nil, nil); err != nil {
		t.Fatal(err)
	}
	set = first.mustTake(t)
	mustPush(t, client, 2, grads)
	for _, s := range first.servers { // they end with a set
		s.stop()
	}
	for _, s := range first.servers {
		if err := s.wait(); err != nil {
			t.Fatal(err)
		}
	}
	if next.LatestSet != nil {
		next.LatestSet = set
	}
	return startClusterOf(t, dir, 2, next), set, start, grads
}

// A job that was resumed from a set begins with it and with nothing else, also if there are newer sets; its
// trainers count from the beginning, whatever their incarnations.
func TestResumedLife(t *testing.T) {
	for _, tt := range []struct {
		what  string
		next  pserver.JobState
		steps int
	}{
		{"resumed", pserver.JobState{Name: "test", ID: "bb", Epoch: 5, LatestSet: []byte("the set")}, 1},
		{"begun again", pserver.JobState{Name: "test", ID: "bb", Epoch: 1}, 2},
		{"the same instance", pserver.JobState{Name: "test", ID: firstLife, Epoch: 4, LatestSet: []byte("the set")}, 1},
	} {
		t.Run(tt.what, func(t *testing.T) {
			c, _, start, grads := twoLives(t, t.TempDir(), tt.next)
			young := connect(t, c.book, params.Config{Mode: params.Async, Optimizer: heavy, Incarnation: 2})
			values := small(constant(0))
			err := young.Init(within(t), values)
			if err == nil {
				if wrong := differ(values, stepped(start, grads, tt.steps)); wrong != nil {
					t.Errorf("after %d steps %v", tt.steps, wrong)
				}
				_, err = young.PushPull(within(t), 1, 1, grads, small(constant(0)))
			}
			if isSame := tt.next.ID == firstLife; isSame == (err == nil) {
				t.Errorf("a trainer whose incarnation is smaller than one of the life before: %v", err)
			}
			wantModel(t, tt.what, c.book, start, grads, map[bool]int{true: tt.steps + 1, false: tt.steps}[err == nil])
		})
	}
}

// The checkpoints of another job are refused in words, unless they are meant.
func TestCheckpointsOfAnotherJob(t *testing.T) { onEachBackend(t, testCheckpointsOfAnotherJob) }

func testCheckpointsOfAnotherJob(t *testing.T, g *storageBackend) {
	dir, _ := g.newDir(t)
	start, grads := small(random(1)), small(random(2))
	c, client := trainedClusterOf(t, dir, start, pserver.JobState{Name: "digits", ID: "aa"})
	mustPush(t, client, 1, grads)
	refuses := func(what string) {
		t.Helper()
		b := newBook(2)
		b.job = pserver.JobState{Name: "again", ID: "bb"}
		err := startServer(t, b, 0, pserver.Config{CheckpointDir: dir}).wait()
		if !errors.Is(err, pserver.ErrOtherJob) || !strings.Contains(err.Error(), `is of job "digits", this server is of job "again"`) || !strings.Contains(err.Error(), "--checkpoints-of digits") {
			t.Errorf("%s: %v", what, err)
		}
	}
	c.mustTake(t)
	refuses("a set")
	c.leave(t)
	b := newBook(2)
	b.job = pserver.JobState{Name: "again", ID: "bb"}
	for i := range 2 {
		startServer(t, b, i, pserver.Config{CheckpointDir: dir, CheckpointsOf: "digits"})
	}
	wantModel(t, "on purpose", b, start, grads, 1)
}

// Discard removes the files of a failed set on request of a leader. The set in etcd and the files of another job
// instance stay.
func TestDiscard(t *testing.T) { onEachBackend(t, testDiscard) }

func testDiscard(t *testing.T, g *storageBackend) {
	dir, place := g.newDir(t)
	start, grads := small(random(1)), small(random(2))
	c, client := trainedClusterOf(t, dir, start, pserver.JobState{Name: "test", ID: "aa"})
	mustPush(t, client, 1, grads)
	latest := c.mustTake(t)
	files := func() (list []string) {
		for _, pattern := range []string{"ps-*/0*", "sets/*"} {
			found, err := filepath.Glob(filepath.Join(place, pattern))
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, found...)
		}
		return list
	}
	before := files()
	mustPush(t, client, 2, grads)
	cut, err := c.begin(within(t))
	if err == nil {
		_, err = cut.Write(within(t), c.about()) // without a name in etcd
	}
	if err != nil {
		t.Fatal(err)
	}
	whole := files()
	half := filepath.Join(place, "ps-1", "00000001-00000099")
	if err := os.Mkdir(half, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(half, "weights.safetensors"), []byte("half-written"), 0o600); err != nil {
		t.Fatal(err)
	}
	if len(files()) <= len(before) {
		t.Fatalf("the failed set left nothing: %v", files())
	}
	if err := c.client.Discard(within(t), c.term-1, latest); err == nil {
		t.Error("request of a former leader was accepted")
	}
	other := startClusterAt(t, dir, c, pserver.JobState{Name: "test", ID: "bb", LatestSet: latest})
	if err := other.client.Discard(within(t), c.term, latest); err != nil {
		t.Fatal(err)
	}
	if got := files(); !slices.Equal(got, whole) {
		t.Fatalf("left by another instance: %v, expected all complete files: %v", got, whole)
	}
	again := startClusterAt(t, dir, other, pserver.JobState{Name: "test", ID: "aa", LatestSet: latest})
	if err := again.client.Discard(within(t), c.term, latest); err != nil {
		t.Fatal(err)
	}
	if got := files(); !slices.Equal(got, before) {
		t.Errorf("left: %v, expected %v", got, before)
	}
	wantModel(t, "the set that is named", again.book, start, grads, 1)
	if err := again.client.Discard(within(t), again.term+1, latest); err != nil {
		t.Fatal(err)
	}
	if _, err := again.begin(within(t)); err == nil {
		t.Error("former leader began a cut after a request of its successor")
	}
}

// Requests that a server reads after its successor's start, because it hung, change no file: the sets of the successor can have the numbers
// of sets that failed before.
func TestReplacedServerChangesNoFiles(t *testing.T) {
	for what, send := range map[string]func(server pb.ParameterServerClient, cut *pb.Cut, failed []byte) error{
		"WriteSet": func(server pb.ParameterServerClient, cut *pb.Cut, failed []byte) error {
			_, err := server.WriteSet(within(t), &pb.WriteSetRequest{Cut: cut, Set: failed})
			return err
		},
		"PruneSets": func(server pb.ParameterServerClient, cut *pb.Cut, _ []byte) error {
			_, err := server.PruneSets(within(t), &pb.PruneSetsRequest{Cut: cut, Keep: 1})
			return err
		},
		"PruneSets of failed sets": func(server pb.ParameterServerClient, cut *pb.Cut, _ []byte) error {
			_, err := server.PruneSets(within(t), &pb.PruneSetsRequest{Cut: &pb.Cut{Number: cut.GetNumber() - 1, Term: cut.GetTerm()}, Failed: true})
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			dir, b := t.TempDir(), newBook(1)
			b.job.ID = "aa"
			start, grads := small(random(1)), small(random(2))
			hung := startServer(t, b, 0, pserver.Config{CheckpointDir: dir})
			c := connect(t, b, params.Config{Mode: params.Async, Optimizer: heavy})
			mustInit(t, c, clone(start))
			mustPush(t, c, 1, grads)
			taker := b.leader
			_, err := taker.take(within(t))
			must(t, err)
			cut, err := taker.begin(within(t))
			must(t, err)
			name, old := &pb.Cut{Number: cut.Number(), Term: taker.term}, control(t, hung.addr)
			part, err := old.WriteCut(within(t), &pb.WriteCutRequest{Cut: name})
			must(t, err)
			failed, err := (&checkpoint.Set{Job: "test", JobID: b.state().ID, Number: cut.Number(), Mode: checkpoint.Async, JobEpoch: 1, Shards: []checkpoint.Part{
				{Generation: checkpoint.Generation{Start: part.GetStart(), Sequence: part.GetSequence()}, SHA256: part.GetSha256()},
			}}).Encode()
			must(t, err)

			b.set(0, "") // its lease has ended
			startServer(t, b, 0, pserver.Config{CheckpointDir: dir})
			wantModel(t, "the successor", b, start, grads, 1)
			if number, err := taker.take(within(t)); err != nil || number != cut.Number() {
				t.Fatalf("set %d of the successor, %v: expected set %d, the number of the set that failed", number, err, cut.Number())
			}
			files := filesIn(t, dir)
			if err := send(old, name, failed); err == nil || !strings.Contains(err.Error(), checkpoint.ErrSuperseded.Error()) {
				t.Errorf("the request returned %v, expected %v", err, checkpoint.ErrSuperseded)
			}
			if got := filesIn(t, dir); !maps.Equal(got, files) {
				t.Errorf("files changed from %q to %q", slices.Sorted(maps.Keys(files)), slices.Sorted(maps.Keys(got)))
			}
			hung.leave(t)
		})
	}
}

// A set is complete when one server finds the files of all others. Servers with directories of their own, as on hosts without a shared
// one, have no set: no server could load it.
func TestSetOverTwoDirectoriesIsNotComplete(t *testing.T) {
	b, dirs := newBook(2), []string{t.TempDir(), t.TempDir()}
	for i, dir := range dirs {
		startServer(t, b, i, pserver.Config{CheckpointDir: dir})
	}
	mustInit(t, connect(t, b, params.Config{Mode: params.Async}), tiny(random(1)))
	number, err := b.leader.take(within(t))
	if err == nil {
		t.Fatalf("set %d is complete", number)
	}
	for _, text := range []string{filepath.Join(dirs[0], "ps-1"), "--checkpoint-dir"} {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("expected %q in %q", text, err)
		}
	}
	if sets, err := filepath.Glob(filepath.Join(dirs[0], "sets", "*")); err != nil || len(sets) > 0 {
		t.Errorf("files of sets: %v, %v: expected none", sets, err)
	}
}

// If etcd names no set, servers load the newest set in the directory. It stays until another set is complete, also if a leader of the same job
// instance removes what failed sets have left: otherwise a server that is killed would return without parameters.
func TestSetLoadedWithoutNameStays(t *testing.T) {
	dir, start, grads := t.TempDir(), small(random(1)), small(random(2))
	job := pserver.JobState{Name: "test", ID: "aa"}
	c, client := trainedClusterOf(t, dir, start, job)
	mustPush(t, client, 1, grads)
	c.mustTake(t)
	for _, what := range []string{"no set is named", "the leader has removed failed sets"} {
		c = startClusterAt(t, dir, c, job)
		wantModel(t, what, c.book, start, grads, 1)
		must(t, c.client.Discard(within(t), c.term, nil))
	}
}

// startClusterAt starts servers in the place of others, which end without a word.
func startClusterAt(t testing.TB, dir string, before *cluster, job pserver.JobState) *cluster {
	t.Helper()
	before.leave(t)
	return startClusterOf(t, dir, 2, job)
}

// If one server keeps no checkpoints and the others do, no set is complete. The error is reported, and no block moves to that server.
func TestOneServerKeepsNoCheckpoints(t *testing.T) {
	dir := t.TempDir()
	wantWords := func(what string, index int, err error) {
		t.Helper()
		if want := fmt.Sprintf("index %d", index); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "without --checkpoint-dir") {
			t.Errorf("%s: %v, expected it to name %s", what, err, want)
		}
	}
	two := newBook(2)
	startServer(t, two, 0, pserver.Config{CheckpointDir: dir})
	startServer(t, two, 1, pserver.Config{})
	mustInit(t, connect(t, two, params.Config{Mode: params.Async}), tiny(random(1)))
	_, err := newSetTaker(t, two).begin(within(t))
	wantWords("a set", 1, err)

	one := newBook(1)
	startServer(t, one, 0, pserver.Config{CheckpointDir: t.TempDir()})
	mustInit(t, connect(t, one, params.Config{Mode: params.Async}), tiny(random(1)))
	placer := newPlacer(t, one)
	stored := resize(t, one, placer, 2)
	one.mu.Lock()
	one.addrs, one.job.Placement = append(one.addrs, ""), stored
	one.mu.Unlock()
	startServer(t, one, 1, pserver.Config{})
	if _, err := one.complete(within(t)); err != nil {
		t.Fatal(err)
	}
	_, _, err = placer.Move(within(t), 1, stored)
	wantWords("a move", 1, err)
}
