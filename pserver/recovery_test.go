package pserver_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver"
	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/placement"
	"trainmaster/trainer/params"
)

// killStride is the distance between two steps after which a server is killed: 1 tests each of them.
var killStride = 1

// F50 and F54: a server is killed after every single step of writing its first and its second checkpoint. The next start finds the
// newest complete checkpoint with the optimizer state. The push that the trainer repeats is applied
// once.
func TestKilledAtEveryStepOfACheckpoint(t *testing.T) {
	onEachBackend(t, killedAtEveryStepOfACheckpoint)
}

func killedAtEveryStepOfACheckpoint(t *testing.T, g *storageBackend) {
	start, grads := tiny(random(1)), tiny(random(2))
	wantOnce := stepped(start, grads, 1)
	wantTwice := stepped(start, grads, 2)
	for dieAt, done := 1, false; !done; dieAt += killStride {
		b := newBook(1)
		dir, _ := g.newDir(t)
		cfg := params.Config{Mode: params.Async, Optimizer: heavy, Incarnation: 7}
		victim := startChild(t, b, childConfig{Dir: dir, DieAt: dieAt})
		before := trainUntilGone(t, b, cfg, victim, start, grads)
		done = victim.cmd.ProcessState.ExitCode() == 0 // it came to its end

		heir := startServer(t, b, 0, pserver.Config{CheckpointDir: dir})
		c := connect(t, b, cfg)
		values := tiny(random(1))
		if err := c.Init(within(t), values); err != nil {
			t.Fatalf("killed at step %d (%v): %v", dieAt, victim.steps, err)
		}
		want := start
		if before != nil && !bytes.Equal(b.state().LatestSet, before) {
			want = wantOnce
		}
		if err := differ(values, want); err != nil {
			t.Fatalf("killed at step %d, after %q: restored %v", dieAt, last(victim.steps), err)
		}
		for step, want := range [][]params.Tensor{wantOnce, wantTwice} { // the first push is a repetition
			if _, err := c.PushPull(within(t), uint64(step)+1, 1, grads, values); err != nil {
				t.Fatal(err)
			}
			if err := differ(values, want); err != nil {
				t.Fatalf("killed at step %d, after %q: after push %d %v", dieAt, last(victim.steps), step+1, err)
			}
		}
		c.Close()
		heir.leave(t)
		if done {
			t.Logf("%d steps, the last is %q", dieAt-1, last(victim.steps))
		}
	}
}

// small makes a model of few blocks, so that a checkpoint has few steps.
func small(fill filling) []params.Tensor {
	return modelOf(fill, params.Tensor{Name: "b", Shape: []int{30}}, params.Tensor{Name: "w", Shape: []int{1000, 300}})
}

// tiny is for tests that restart servers often: as many blocks on two servers as small, with few elements.
func tiny(fill filling) []params.Tensor {
	return modelOf(fill, params.Tensor{Name: "b", Shape: []int{30}}, params.Tensor{Name: "w", Shape: []int{100, 30}}, params.Tensor{Name: "x", Shape: []int{30}})
}

func last(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[len(list)-1]
}

// trainUntilGone initializes, pushes step 1, and stops the server, which dies at the given step. It returns the latest set at the
// end of the push, nil if the server died before.
func trainUntilGone(t testing.TB, b *book, cfg params.Config, victim *child, start, grads []params.Tensor) (before []byte) {
	t.Helper()
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	go func() {
		<-victim.gone
		cancel()
	}()
	cfg.Addrs, cfg.Log = b.complete, quiet()
	c, err := params.Connect(ctx, cfg)
	if err == nil {
		defer c.Close()
		values := clone(start)
		if err = c.Init(ctx, values); err == nil {
			_, err = c.PushPull(ctx, 1, 1, grads, values)
		}
		if err == nil {
			before = b.state().LatestSet
		}
	}
	if err != nil && ctx.Err() == nil {
		t.Fatal(err)
	}
	victim.terminate()
	return before
}

// stepped is what the momentum rule makes of start in a number of equal steps.
func stepped(start, grads []params.Tensor, steps int) []params.Tensor {
	out := clone(start)
	for i := range out {
		velocity := make([]float32, len(out[i].Data))
		for range steps {
			for j, g := range grads[i].Data {
				v := &velocity[j]
				*v = float32(heavy.Momentum**v) + g
				out[i].Data[j] -= float32(heavy.LearningRate * *v)
			}
		}
	}
	return out
}

// Servers are killed repeatedly while trainers push. The trainers see no errors, and the content of every block
// matches its number of pushes.
func TestTrainersContinueWhenServersAreKilled(t *testing.T) {
	const trainers, kills = 3, 4
	dir, b := t.TempDir(), newBook(2)
	start := func(index int) *child {
		return startChild(t, b, childConfig{Dir: dir, Index: index})
	}
	children := []*child{start(0), start(1)}
	stop := make(chan struct{})
	var group sync.WaitGroup
	ctx := within(t)
	taken := newSetTaker(t, b)
	group.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				taken.take(ctx) //nolint:errcheck // servers are killed during the call
			}
		}
	})
	for ordinal := range trainers {
		group.Go(func() {
			c := connect(t, b, params.Config{Mode: params.Async, Ordinal: uint32(ordinal)})
			values, grads := tensors(constant(1)), tensors(constant(2))
			if err := c.Init(ctx, values); err != nil {
				t.Error(err)
				return
			}
			for step := uint64(1); ; step++ {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := c.PushPull(ctx, step, 1, grads, values); err != nil {
					t.Errorf("trainer %d, step %d: %v", ordinal, step, err)
					return
				}
			}
		})
	}
	watcher := connect(t, b, params.Config{Mode: params.Async, Ordinal: trainers})
	seen := tensors(constant(1))
	mustInit(t, watcher, seen)
	progress := func(beyond uint64) {
		t.Helper()
		for {
			version, err := watcher.Pull(ctx, seen, 0)
			if err != nil {
				t.Fatal(err)
			}
			if version > beyond {
				return
			}
		}
	}
	for kill := range kills {
		children[kill%2].mu.Lock()
		writes := len(children[kill%2].steps)
		children[kill%2].mu.Unlock()
		progress(uint64(5 * (kill + 1)))
		for { // it has written since, or is writing
			children[kill%2].mu.Lock()
			more := len(children[kill%2].steps) > writes+20
			children[kill%2].mu.Unlock()
			if more {
				break
			}
			progress(0)
		}
		children[kill%2].kill()
		children[kill%2] = start(kill % 2)
	}
	before, err := watcher.Pull(ctx, seen, 0)
	if err != nil {
		t.Fatal(err)
	}
	progress(before + 5)
	close(stop)
	group.Wait()

	addrs, err := b.complete(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for index, addr := range addrs {
		reply, err := control(t, addr).Describe(ctx, &pb.DescribeRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if reply.GetShardEpoch() != 3 {
			t.Errorf("shard %d has epoch %d after 2 restarts", index, reply.GetShardEpoch())
		}
	}
	if _, err := watcher.Pull(ctx, seen, 0); err != nil {
		t.Fatal(err)
	}
	for _, tensor := range seen {
		for at := 0; at < len(tensor.Data); at += placement.BlockElements {
			for j, v := range tensor.Data[at:min(at+placement.BlockElements, len(tensor.Data))] {
				if v != tensor.Data[at] || v != float32(int(v)) || v > 1 {
					t.Fatalf("%s[%d] is %v, the first of its block %v", tensor.Name, at+j, v, tensor.Data[at])
				}
			}
		}
	}
}

// A shard on which no block fell, since there are fewer of them, comes back like any other.
func TestShardWithoutBlocks(t *testing.T) {
	dir, b := t.TempDir(), newBook(2)
	for _, life := range []string{"first", "second"} {
		var servers []*server
		for i := range 2 {
			servers = append(servers, startServer(t, b, i, pserver.Config{CheckpointDir: dir}))
		}
		c := connect(t, b, params.Config{Mode: params.Async})
		one := []params.Tensor{{Name: "w", Shape: []int{2}, Data: []float32{1, 2}}}
		if err := c.Init(within(t), one); err != nil {
			t.Fatalf("%s life: %v", life, err)
		}
		if one[0].Data[1] != 2 {
			t.Errorf("%s life: parameters are %v", life, one[0].Data)
		}
		c.Close()
		for _, s := range servers {
			s.stop()
			if err := s.wait(); err != nil {
				t.Errorf("%s life: %v", life, err)
			}
		}
	}
}

// F55: a server that lost its lease ends immediately, closes its connections, and writes nothing to the disk.
func TestLeaseLost(t *testing.T) {
	dir, b := t.TempDir(), newBook(1)
	s := startServer(t, b, 0, pserver.Config{CheckpointDir: dir})
	c := connect(t, b, params.Config{Mode: params.Async})
	values := tensors(constant(1))
	mustInit(t, c, values)
	if _, err := c.PushPull(within(t), 1, 1, tensors(constant(2)), values); err != nil {
		t.Fatal(err)
	}
	p := dial(t, s.addr).sayHello(9, 9)
	before := listing(t, dir)
	s.lose()
	if err := s.wait(); !errors.Is(err, pserver.ErrLeaseLost) {
		t.Errorf("Run returned %v, expected %v", err, pserver.ErrLeaseLost)
	}
	if _, _, err := p.read(); err == nil || isTimeout(err) {
		t.Errorf("the trainer's connection: %v", err)
	}
	if after := listing(t, dir); after != before {
		t.Errorf("directory before the loss\n%s\nafter\n%s", before, after)
	}
}

func listing(t testing.TB, dir string) string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		names = append(names, strings.TrimPrefix(path, dir))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(names, "\n")
}

// A stopped server writes its state. The next start increases the
// epoch, and a server that a later start has superseded writes nothing.
func TestStopAndSucceed(t *testing.T) { onEachBackend(t, stopAndSucceed) }

func stopAndSucceed(t *testing.T, g *storageBackend) {
	b := newBook(1)
	dir, _ := g.newDir(t)
	first := startServer(t, b, 0, pserver.Config{CheckpointDir: dir})
	c := connect(t, b, params.Config{Mode: params.Async})
	values := tensors(constant(1))
	mustInit(t, c, values)
	if _, err := c.PushPull(within(t), 1, 1, tensors(constant(2)), values); err != nil {
		t.Fatal(err)
	}
	first.stop()
	if err := first.wait(); err != nil {
		t.Fatal(err)
	}
	second := startServer(t, b, 0, pserver.Config{CheckpointDir: dir})
	if _, err := c.Pull(within(t), values, 0); err != nil {
		t.Fatal(err)
	}
	if err := differ(values, tensors(constant(0))); err != nil {
		t.Fatal(err)
	}
	startServer(t, b, 0, pserver.Config{CheckpointDir: dir})
	mustInit(t, connect(t, b, params.Config{Mode: params.Async}), values) // the third is ready
	b.set(0, second.addr)
	if _, err := newSetTaker(t, b).take(within(t)); err == nil || !strings.Contains(err.Error(), "owned by a later start") {
		t.Errorf("a cut of the overtaken server: %v", err)
	}
	if err := second.wait(); err == nil || !strings.Contains(err.Error(), "owned by a later start") {
		t.Errorf("the overtaken server returned %v", err)
	}
}

// F52: for any damaged byte of a checkpoint, the server names the file and waits. It does not use the previous checkpoint.
func TestDamagedCheckpoints(t *testing.T) { onEachBackend(t, damagedCheckpoints) }

func damagedCheckpoints(t *testing.T, g *storageBackend) {
	b := newBook(1)
	dir, files := g.newDir(t)
	c := connectLater(t, b)
	for step := range uint64(2) { // two checkpoints: parameters 0 and -1, after the initial 1
		s := startServer(t, b, 0, pserver.Config{CheckpointDir: dir})
		values := tensors(constant(1))
		mustInit(t, c(), values)
		if _, err := c().PushPull(within(t), step+1, 1, tensors(constant(2)), values); err != nil {
			t.Fatal(err)
		}
		s.stop()
		if err := s.wait(); err != nil {
			t.Fatal(err)
		}
	}
	folders, err := filepath.Glob(filepath.Join(files, "ps-0", "*-*"))
	if err != nil || len(folders) != 2 {
		t.Fatalf("checkpoints %v, %v; expected 2", folders, err)
	}
	newest, older := folders[1], folders[0]
	value := func() float32 {
		values := tensors(constant(1))
		if _, err := c().Pull(within(t), values, 0); err != nil {
			t.Fatal(err)
		}
		return values[0].Data[0]
	}
	refused := func(what, name string) {
		t.Helper()
		s := startServer(t, b, 0, pserver.Config{CheckpointDir: dir})
		wantUnrestored(t, what, &cluster{book: b, servers: []*server{s}}, filepath.Base(newest), name, "master checkpoint use SET")
		s.stop()
		if err := s.wait(); err != nil { // it saves nothing
			t.Errorf("%s: a server that waits was stopped: %v", what, err)
		}
	}
	for _, name := range []string{"weights.safetensors", "optimizer.safetensors", "pushes.safetensors", "MANIFEST.json"} {
		path := filepath.Join(newest, name)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range []int{0, 9, len(data) / 3, len(data) / 2, len(data) - 3} {
			damaged := bytes.Clone(data)
			damaged[at] ^= 2 // a digit stays a digit
			write(t, path, damaged)
			refused(fmt.Sprintf("byte %d of %s is damaged", at, name), name)
		}
		write(t, path, data[:len(data)-2])
		refused(name+" is cut short", name)
		write(t, path, data)
	}
	s := startServer(t, b, 0, pserver.Config{CheckpointDir: dir})
	if v := value(); v != -1 {
		t.Errorf("undamaged: restored %v, expected -1", v)
	}
	s.leave(t)
	store := checkpoint.Store{Place: checkpoint.Disk(files)}
	sets, err := store.Sets(t.Context())
	if err != nil || len(sets) != 2 {
		t.Fatalf("sets %v, %v; expected 2", sets, err)
	}
	text, err := store.ReadText(t.Context(), sets[1])
	if err != nil {
		t.Fatal(err)
	}
	b.mu.Lock()
	b.job.LatestSet = text // as an operator does after the message
	b.mu.Unlock()
	startServer(t, b, 0, pserver.Config{CheckpointDir: dir})
	if v := value(); v != 0 {
		t.Errorf("the older set: restored %v, expected 0", v)
	}
	if _, err := os.Stat(older); err != nil {
		t.Error(err)
	}
}

func write(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// connectLater makes one client at its first call, when the server is running.
func connectLater(t testing.TB, b *book) func() *params.Client {
	return sync.OnceValue(func() *params.Client { return connect(t, b, params.Config{Mode: params.Async}) })
}

// F51: a full disk costs a checkpoint and nothing else.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	smallDisk(t, dir)
	b := newBook(1)
	s := startServer(t, b, 0, pserver.Config{CheckpointDir: dir})
	taken := newSetTaker(t, b)
	c := connect(t, b, params.Config{Mode: params.Async})
	values := tensors(constant(1))
	mustInit(t, c, values)
	write(t, filepath.Join(dir, "ballast"), make([]byte, 4<<20))
	describe := control(t, s.addr)
	step := uint64(0)
	trainUntil := func(what string, done func(*pb.DescribeReply) bool) string {
		t.Helper()
		for ctx := within(t); ; {
			step++
			if _, err := c.PushPull(ctx, step, 1, tensors(constant(2)), values); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			taken.take(ctx) //nolint:errcheck // Describe says it
			reply, err := describe.Describe(ctx, &pb.DescribeRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if done(reply) {
				return reply.GetCheckpoint()
			}
		}
	}
	kept := trainUntil("disk full", func(r *pb.DescribeReply) bool { return strings.Contains(r.GetCheckpointError(), "no space left") })
	if _, err := os.Stat(filepath.Join(dir, "ps-0", kept, "MANIFEST.json")); err != nil {
		t.Errorf("the checkpoint from before: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "ballast")); err != nil {
		t.Fatal(err)
	}
	trainUntil("room again", func(r *pb.DescribeReply) bool { return r.GetCheckpointError() == "" && r.GetCheckpoint() != kept })
	s.stop()
	if err := s.wait(); err != nil {
		t.Error(err)
	}
}

// F51 with several servers: one disk is full. No set is complete, the previous set stays complete and named, the other server is
// unaffected, and training continues. With room again, sets are complete again.
func TestOneOfSeveralDisksIsFull(t *testing.T) {
	dir := t.TempDir()
	disk := filepath.Join(dir, "ps-1")
	if err := os.Mkdir(disk, 0o755); err != nil {
		t.Fatal(err)
	}
	smallDisk(t, disk)
	b := newBook(2)
	for i := range 2 {
		startServer(t, b, i, pserver.Config{CheckpointDir: dir})
	}
	taken := newSetTaker(t, b)
	c := connect(t, b, params.Config{Mode: params.Async})
	values := tensors(constant(1))
	mustInit(t, c, values)
	step := uint64(0)
	train := func() error {
		t.Helper()
		step++
		if _, err := c.PushPull(within(t), step, 1, tensors(constant(2)), values); err != nil {
			t.Fatal(err)
		}
		_, err := taken.take(within(t))
		return err
	}
	if err := train(); err != nil {
		t.Fatal(err)
	}
	kept := b.state().LatestSet
	ballast, err := os.Create(filepath.Join(disk, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	for piece := make([]byte, 4096); err == nil; {
		_, err = ballast.Write(piece)
	}
	if err := ballast.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := train(); err == nil || !strings.Contains(err.Error(), "no space left") || !strings.Contains(err.Error(), "server 1") {
			t.Fatalf("a set with a full disk: %v, expected the server without space", err)
		}
	}
	if latest := b.state().LatestSet; string(latest) != string(kept) {
		t.Errorf("%s is named, expected the set before the disk was full", latest)
	}
	set, err := checkpoint.ParseSet(kept)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (checkpoint.Store{Place: checkpoint.Disk(dir)}).Open(t.Context(), set); err != nil {
		t.Errorf("the set before the disk was full: %v", err)
	}
	if err := os.Remove(ballast.Name()); err != nil {
		t.Fatal(err)
	}
	if err := train(); err != nil || string(b.state().LatestSet) == string(kept) {
		t.Errorf("with room again: %v, expected another set", err)
	}
}

// smallDisk mounts a file system of 8 MiB.
func smallDisk(t *testing.T, dir string) {
	t.Helper()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		missing := "a small file system is missing: mounting one needs root: " + err.Error()
		if os.Getenv("REQUIRE") == "all" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
}
